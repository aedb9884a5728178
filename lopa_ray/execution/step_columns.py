"""StepColumns: what the device has to be told of a step, in one copy."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.execution.device import host_buffer

Column = TypeVar("Column")


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns(Generic[Column]):
    """Arrays on the host, or the same as tensors on the device: int64, but for numbers and bits.

    Shape suffixes: R rows, T tiles, P staged rows, Q staged boundary rows, N scored rows, W ids that end an answer,
    M sets of tokens, B their bytes. Rows of the forward are counted from 0 on, boundary rows of slots from R on.
    """

    ids: Column
    """[R]."""
    positions: Column
    """[R]."""
    stops: Column
    """[R]: each row sees the positions below."""
    tiles: Column
    """[T, 5]: see `slot_attention`."""
    lanes: Column
    """[T + 1, 3]: slot, position of the first row, and that row; lanes that are missing begin at the end, R."""
    commit_rows: Column
    """[·, 3]: staged row, slot and position of what is committed before the forward."""
    commit_boundaries: Column
    """[·, 2]: staged boundary row, and slot."""
    stage_rows: Column
    """[P]: rows of the forward."""
    stage_boundaries: Column
    """[Q]: rows of the forward, or of slots."""
    score_rows: Column
    """[N]: rows of the forward, or of slots."""
    score_numbers: Column
    """fp64 [N, 8]: see `ScoringKind.numbers`."""
    ending_ids: Column
    """[N, W]: ids that the row must not choose; -1: none."""
    bitmasks: Column
    """uint8 [M, B]: sets of tokens, a bit each; the first has all."""


def copy_to_device(
    columns: StepColumns[npt.NDArray[np.generic]], device: torch.device
) -> StepColumns[Tensor]:
    """One copy, which the host does not wait for. Every array has a multiple of 8 bytes."""
    arrays = [getattr(columns, field.name) for field in fields(StepColumns)]
    words = [array.reshape(-1).view(np.int64) for array in arrays]
    host = host_buffer(sum(map(len, words)), device)
    np.concatenate(words, out=host.numpy())
    there = host.to(device, non_blocking=True)
    tensors, at = [], 0
    for array, flat in zip(arrays, words, strict=True):
        part = there[at : at + len(flat)]
        if array.dtype == np.float64:
            part = part.view(torch.float64)
        elif array.dtype == np.uint8:
            part = part.view(torch.uint8)
        tensors.append(part.view(array.shape))
        at += len(flat)
    return StepColumns(*tensors)
