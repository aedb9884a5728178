"""StepColumns: all inputs of a step on the device, which are transferred in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Column = TypeVar("Column")


WORD_BYTES = 8

ALIGN_BYTES = 128
"""Columns begin at a multiple of this many bytes, because Triton compiles a kernel again for other alignments."""


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns(Generic[Column]):
    """The columns as arrays on the host, or as tensors on the device. They are int64 unless stated otherwise.

    Shape suffixes: R rows, T tiles, A parts of tiles, P staged rows, Q staged boundary rows, N scored rows, W ids that
    end an answer, M sets of tokens, B bytes of a set, C canvases, E tokens whose logits change or rise, L lanes, F
    tokens of a fill set, K candidates.
    Indices from 0 to R - 1 are rows of the forward, and indices from R on are boundary rows of slots.
    """

    ids: Column
    """[R]: token ids."""
    input_weights: Column
    """fp64 [R]: the weight of each row's token in its soft input (see `embed_softly`); [0] if all inputs are plain."""
    signal_rows: Column
    """[R]: see `signal_rows` of `lopa_ray.execution.self_conditioning`; [0] unless the model denoises canvases."""
    draft_rows: Column
    """fp64 [R]: 1 for rows that go through the draft adapter, 0 for others; [0] if no row does."""
    positions: Column
    """[R]: positions."""
    stops: Column
    """[R]: the end (exclusive) of the positions that each row sees."""
    tiles: Column
    """[T, 5]: see `slot_attention`. Tiles that are split have no rows here."""
    parts: Column
    """[A, 7]: parts of tiles that are split (see `slot_attention`); [0, 7] if none is."""
    lanes: Column
    """[T + 1, 3]: slot, position of the first row, and index of that row. Unused lanes begin at row R."""
    commit_rows: Column
    """[·, 3]: staged row, slot and position of each row that is committed before the forward."""
    commit_boundaries: Column
    """[·, 2]: staged boundary row and slot of each boundary row that is committed before the forward."""
    stage_rows: Column
    """[P]: rows of the forward."""
    stage_boundaries: Column
    """[Q]: rows of the forward, or of slots."""
    stage_signals: Column
    """[Q x positions of a canvas]: see `stage_signals` of `lopa_ray.execution.self_conditioning`."""
    score_rows: Column
    """[N]: rows of the forward, or of slots."""
    rows_beside: Column
    """[N]: the row of the state before or the shadow slot for each scored row, or -1 if there is none; [0] if no row
    has any."""
    credits: Column
    """fp64 [N, 1 + E, 2]: see `credit_rows` of `lopa_ray.execution.rule_memory`; [0, 0, 2] if no row has any."""
    guesses: Column
    """[B, G + 1, 2]: of each branch that drafts go on from, the scored row of each token that it guesses and of the one
    after them, and the guessed token, or -1 where there is none; [0, 0, 2] if there is no such branch."""
    score_numbers: Column
    """fp64 [N, columns]: see `RowNumbers`."""
    ending_ids: Column
    """[N, W]: ids that the row must not choose; -1: none."""
    candidates: Column
    """[N, K]: tokens whose log-probabilities are requested, padded with 0; [0, 0] if no row has any."""
    bitmasks: Column
    """uint8 [M, B]: sets of tokens, one bit per token. The first set has all tokens."""
    change_rows: Column
    """[N, 2]: the canvas and the lane whose logit changes apply to each row; [0, 2] if no logits change."""
    canvas_changes: Column
    """fp64 [C, E, 4]: see `LogitChangeTables.of_canvases`."""
    fill_changes: Column
    """fp64 [L, F, 4]: see `LogitChangeTables.of_fills`."""


def copy_to_device(
    columns: StepColumns[npt.NDArray[np.generic]], device: torch.device
) -> StepColumns[Tensor]:
    """The columns on a device, with their shapes, such as int64 [R], and dtypes, by one asynchronous copy; for a CPU
    nothing is copied. The size of every array is a multiple of 8 bytes."""
    arrays = [getattr(columns, field) for field in StepColumns.__slots__]
    if device.type == "cpu":
        return StepColumns(*map(torch.from_numpy, arrays))
    sizes: list[int] = []  # of each array, then of the padding that aligns the next array, in words
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


def host_buffer(words: int, device: torch.device) -> torch.Tensor:
    """An uninitialised int64 [words] on the host, pinned for accelerators: torch does not reuse freed pinned memory
    before pending copies from it are done."""
    return torch.empty(words, dtype=torch.int64, pin_memory=device.type not in ("cpu", "meta"))
