"""StepColumns: what the device has to be told of a step, in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.execution.device import host_buffer

Column = TypeVar("Column")


WORD_BYTES = 8

ALIGN_BYTES = 128
"""Columns begin at a multiple of this: Triton compiles a kernel anew for pointers that are aligned otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns(Generic[Column]):
    """Arrays on the host, or the same as tensors on the device: int64, but for numbers and bits.

    Shape suffixes: R rows, T tiles, P staged rows, Q staged boundary rows, N scored rows, W ids that end an answer,
    M sets of tokens, B their bytes; C canvases, E tokens whose logits change, L lanes, F tokens of a lane's fill set.
    Rows of the forward are counted from 0 on, boundary rows of slots from R on.
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
    """fp64 [N, 9]: see `ScoringKind.numbers`."""
    ending_ids: Column
    """[N, W]: ids that the row must not choose; -1: none."""
    bitmasks: Column
    """uint8 [M, B]: sets of tokens, a bit each; the first has all."""
    change_rows: Column
    """[N, 2]: canvas and lane of each row, whose changes of logits are its own; [0, 2] where no logits change."""
    canvas_changes: Column
    """fp64 [C, E, 4]: see `LogitChangeTables`."""
    fill_changes: Column
    """fp64 [L, F, 4]."""


def copy_to_device(
    columns: StepColumns[npt.NDArray[np.generic]], device: torch.device
) -> StepColumns[Tensor]:
    """The columns on a device, by one copy that the host does not wait for. To a CPU nothing is copied.

    Shapes and dtypes are those of `StepColumns`, whose fields begin with a dimension, as [N]. Every array has a
    multiple of 8 bytes, of int64 or fp64.
    """
    arrays = [getattr(columns, field) for field in StepColumns.__slots__]
    if device.type == "cpu":
        return StepColumns(*map(torch.from_numpy, arrays))
    sizes: list[int] = []
    """Words of each array, and of what aligns the next."""
    for array in arrays:
        sizes += array.nbytes // WORD_BYTES, -array.nbytes % ALIGN_BYTES // WORD_BYTES
    host = host_buffer(sum(sizes), device)
    buffer, at = host.numpy(), 0
    for array, words, padding in zip(arrays, sizes[::2], sizes[1::2], strict=True):
        if words:
            buffer[at : at + words] = array.reshape(-1).view(np.int64)
        at += words + padding
    tensors = []
    for array, part in zip(arrays, host.to(device, non_blocking=True).split(sizes)[::2], strict=True):
        if array.dtype != np.int64:
            part = part.view(torch.float64 if array.dtype == np.float64 else torch.uint8)
        tensors.append(part if array.ndim == 1 else part.view(array.shape))
    return StepColumns(*tensors)
