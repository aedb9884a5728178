"""StepBuffer: memory for the inputs of captured steps. A CUDA graph reads the addresses that its capture has read, so
the inputs of all steps of a bucket of rows have the same shapes there, and each step refills them by one copy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.execution.lane import Lane
from lopa_ray.execution.launched_step import has_events
from lopa_ray.execution.packing import Packing, PackingOptions, bucket_tiles
from lopa_ray.execution.scoring_kind import COLUMN, row_numbers
from lopa_ray.execution.step_columns import ALIGN_BYTES, WORD_BYTES, StepColumns, host_buffer
from lopa_ray.kernels.padding import bucket_rows
from lopa_ray.kernels.slot_attention import TILE_COLUMNS
from lopa_ray.protocol.sampling_params import SamplingParams

MAX_ENDING_IDS = 4  # ids that end an answer, per row of a captured step: EOS and three more

OUTSIDE_WORDS = 2**16
"""Words for the columns that the graph does not read, and whose lengths differ from step to step: rows to commit and
rows to stage."""

OUTSIDE = ("commit_rows", "commit_boundaries", "stage_rows", "stage_boundaries")  # these columns

RARE = ("parts", "input_weights", "signal_rows", "guesses")  # columns of which captured steps have nothing

PLAIN = np.array(row_numbers(SamplingParams()))  # the numbers of rows whose scores are not used


@dataclass(frozen=True, slots=True)
class Column:
    """A column in the pinned memory, and on the device."""

    host: npt.NDArray[np.generic]
    device: Tensor


class StepBuffer:
    """Pinned memory in words of 8 bytes, and as much on the device. All buckets share it: steps follow one another."""

    def __init__(self, device: torch.device, words: int) -> None:
        self.words = words
        self._host = host_buffer(words, device)
        self._device = torch.zeros(words, dtype=torch.int64, device=device)
        self._copied = torch.Event(device) if has_events(device) else None

    def column(self, at: int, shape: tuple[int, ...], dtype: torch.dtype) -> Column:
        end = at + math.prod(shape)
        host, device = (words[at:end].view(dtype).view(shape) for words in (self._host, self._device))
        return Column(host.numpy(), device)

    def wait(self) -> None:
        """Return when the last copy has read the pinned memory. A step that waits for its scores has it done."""
        if self._copied is not None:
            self._copied.synchronize()

    def copy(self, words: int) -> None:
        self._device[:words].copy_(self._host[:words], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class BucketInputs:
    """The inputs of all captured steps of a bucket, which has as many places for rows to score as for rows: N is R."""

    def __init__(self, buffer: StepBuffer, rows: int, options: PackingOptions) -> None:
        self._buffer = buffer
        self._layout = layout(rows, options)
        self._inside: dict[str, Column] = {}
        at = 0
        for name, (shape, dtype, _) in self._layout.items():
            self._inside[name] = buffer.column(at, shape, dtype)
            at = aligned(at + math.prod(shape))
        self._end = at
        nothing = {name: buffer.column(0, (0,), torch.int64).device for name in StepColumns.__slots__}
        self._nothing = nothing | {name: column.device for name, column in self._inside.items()}

    @staticmethod
    def words(rows: int, options: PackingOptions) -> int:
        return OUTSIDE_WORDS + sum(
            aligned(math.prod(shape)) for shape, _, _ in layout(rows, options).values()
        )

    @property
    def columns(self) -> StepColumns[Tensor]:
        """The columns on the device that the graph reads, such as int64 [R] of the ids. The others are empty."""
        return StepColumns(**self._nothing)

    def takes(self, packing: Packing) -> bool:
        """Whether a step of this number of rows has no other inputs than these, and no more of them."""
        columns = packing.columns
        outside = sum(aligned(getattr(columns, name).size) for name in OUTSIDE)
        return (
            len(columns.tiles) <= len(self._inside["tiles"].host)
            and len(columns.score_rows) <= len(self._inside["score_rows"].host)
            and columns.ending_ids.shape[1] <= MAX_ENDING_IDS
            and self._end + outside <= self._buffer.words
            and not any(len(getattr(columns, name)) for name in RARE)
            and all(group.kind.is_fused for group in packing.rows_to_score.groups)
        )

    def fill(self, columns: StepColumns[npt.NDArray[np.generic]]) -> StepColumns[Tensor]:
        """The columns of a step that `takes` accepts, such as int64 [R] of the ids, with R rows to score, on the device
        until the next step: one copy, which the host does not wait for."""
        self._buffer.wait()
        for name, (_, _, padding) in self._layout.items():
            array, host = getattr(columns, name), self._inside[name].host
            host[...] = padding
            host[tuple(map(slice, array.shape))] = array
        at, outside = self._end, {}
        for name in OUTSIDE:
            array = getattr(columns, name)
            column = self._buffer.column(at, array.shape, torch.int64)
            column.host[...] = array
            outside[name] = column.device
            at = aligned(at + array.size)
        self._buffer.copy(at)
        return StepColumns(**self._nothing | outside)


def layout(rows: int, options: PackingOptions) -> dict[str, tuple[tuple[int, ...], torch.dtype, Any]]:
    """The columns that the graph of a bucket of `rows` rows reads: shape, dtype, and padding of what a step lacks."""
    tiles = bucket_rows(bucket_tiles(rows, options.heads_per_kv_head))
    return {
        "ids": ((rows,), torch.int64, 0),
        "positions": ((rows,), torch.int64, 0),
        "stops": ((rows,), torch.int64, 0),
        "tiles": ((tiles, TILE_COLUMNS), torch.int64, 0),
        "lanes": ((tiles + 1, 3), torch.int64, (0, 0, rows)),
        "score_rows": ((rows,), torch.int64, 0),
        "score_numbers": ((rows, len(COLUMN)), torch.float64, PLAIN),
        "ending_ids": ((rows, MAX_ENDING_IDS), torch.int64, -1),
        "draft_rows": ((rows if options.has_draft_adapter else 0,), torch.float64, 0),
    }


def aligned(words: int) -> int:
    """The next multiple of `ALIGN_BYTES`, in words."""
    multiple = ALIGN_BYTES // WORD_BYTES
    return -(-words // multiple) * multiple


def example_step(rows: int, options: PackingOptions) -> Packing:
    """A step of that many rows, for warm-ups and captures: lanes of masks in the first slot, with nothing cached."""
    lengths = [min(options.capacity, rows - first) for first in range(0, rows, options.capacity)]
    lanes = [
        Lane(0, 0, np.full(length, options.vocabulary.mask_token_id, np.int64), ((length, length),))
        for length in lengths
    ]
    return Packing(lanes, (), options)
