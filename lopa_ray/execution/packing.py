"""Packing: everything that a step needs of its lanes, made at once: on the host in numpy, on the device by one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lopa_ray.errors import CapacityError
from lopa_ray.execution.lane import Lane
from lopa_ray.execution.rows_to_score import RowsToScore
from lopa_ray.execution.staging import PendingCommit
from lopa_ray.execution.step_columns import StepColumns, copy_to_device
from lopa_ray.kernels.slot_attention import TILE_COLUMNS, TILE_ROWS

ROW_MULTIPLE = 16
"""On CPU a row of a matmul has the same bits whatever the other rows are, as long as every thread gets 4
rows or more; with this multiple that was seen with 1 and 2 threads."""

MIN_LANE_ROWS = 4
"""A bucket has tiles for lanes of so many rows each; more lanes take the next bucket."""


def padded_rows(rows: int) -> int:
    """How many rows a matmul should have so that its bits do not depend on their number."""
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def bucket_rows(rows: int) -> int:
    """Rows of the bucket of a step: 8 sizes between powers of 2, so that few graphs serve all steps."""
    step = max(ROW_MULTIPLE, 1 << max(0, (rows - 1).bit_length() - 4))
    return -(-rows // step) * step


@dataclass(frozen=True, slots=True)
class PackingOptions:
    """What does not change from step to step."""

    capacity: int
    """Positions of a slot."""
    heads_per_kv_head: int
    vocab_size: int
    mask_token_id: int
    eos_token_id: int
    shift: int
    """1: row p - 1 of the logits decides position p; 0: row p does."""
    fuse_greedy: bool
    """Whether the whole vocabulary is here, so that `row_scores` can do greedy rows."""
    bucket: Callable[[int], int]
    """How many rows a forward of so many rows has."""


class Packing:
    """The lanes of a step, packed."""

    def __init__(
        self, lanes: Sequence[Lane], commits: Sequence[PendingCommit], options: PackingOptions
    ) -> None:
        """Raises CapacityError for positions beyond a slot."""
        self.lanes, self.commits = lanes, commits
        self._options = options
        counts = np.array([len(lane.canvas) for lane in lanes], np.int64)
        self.num_rows = int(counts.sum())
        self.longest_lane = int(counts.max(initial=0))
        self.first_rows = np.cumsum(counts) - counts
        """Of each lane."""
        starts = np.array([lane.start for lane in lanes], np.int64)
        slots = np.array([lane.slot for lane in lanes], np.int64)
        lane_of_row = np.repeat(np.arange(len(lanes)), counts)
        offsets = np.arange(self.num_rows) - self.first_rows[lane_of_row]
        positions = starts[lane_of_row] + offsets
        ids = np.concatenate([np.zeros(0, np.int64), *(lane.canvas for lane in lanes)])
        for lane, first in zip(lanes, self.first_rows.tolist(), strict=True):
            for position, token in lane.fills:
                ids[first + position - lane.start] = token
        runs = np.array([run for lane in lanes for run in lane.runs()], np.int64).reshape(-1, 2)
        stops = np.repeat(runs[:, 1], runs[:, 0])
        self._check_capacity(positions, stops)
        tiles = self._tiles(counts, starts, slots)
        self.rows_bucket = self._num_rows_padded

        scored = np.flatnonzero((ids == options.mask_token_id) & self._in_scored(lane_of_row, positions))
        self.rows_to_score = RowsToScore(
            lanes,
            lane_of_row[scored],
            positions[scored],
            vocab_size=options.vocab_size,
            eos_token_id=options.eos_token_id,
            fuse_greedy=options.fuse_greedy,
            bucket=options.bucket,
        )
        # Left of the input a slot's boundary row decides.
        deciding = np.where(
            offsets[scored] >= options.shift,
            scored - options.shift,
            self.rows_bucket + slots[lane_of_row[scored]],
        )
        stage_rows, stage_boundaries = self._staged_rows()
        commit_rows, commit_boundaries = self._committed_rows()
        self.columns: StepColumns[npt.NDArray[np.generic]] = StepColumns(
            ids=self._pad(ids),
            positions=self._pad(positions),
            stops=self._pad(stops),
            tiles=tiles,
            lanes=self._lane_table(len(tiles), starts, slots),
            commit_rows=commit_rows,
            commit_boundaries=commit_boundaries,
            stage_rows=stage_rows,
            stage_boundaries=stage_boundaries,
            score_rows=self.rows_to_score.padded(deciding),
            score_numbers=self.rows_to_score.numbers,
            ending_ids=self.rows_to_score.ending_ids,
            bitmasks=self.rows_to_score.bitmasks,
        )

    def to_device(self, device: torch.device) -> StepColumns[Tensor]:
        """The columns on the device, by one copy."""
        return copy_to_device(self.columns, device)

    @property
    def has_staged_rows(self) -> bool:
        """Whether any lane stages K/V."""
        return len(self.columns.stage_boundaries) > 0

    @cached_property
    def stage_ranges(self) -> list[range]:
        """Of each lane that stages, in order, its rows among the staged ones."""
        counts = [len(self._fresh(lane)) for lane in self.lanes if lane.to_stage]
        ends = np.cumsum(counts).tolist()
        return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def _pad(self, column: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        padded = np.zeros(self.rows_bucket, np.int64)
        padded[: len(column)] = column
        return padded

    def _check_capacity(self, positions: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        reach = max(int(positions.max(initial=-1)) + 1, int(stops.max(initial=0)))
        if reach > self._options.capacity:
            raise CapacityError(
                f"{reach} positions do not fit a slot of {self._options.capacity}; raise max_model_len "
                "or shorten the request"
            )

    def _in_scored(
        self, lane_of_row: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Whether each row's position is to be scored, if it is masked."""
        scored = np.array([(lane.scored.start, lane.scored.stop) for lane in self.lanes], np.int64)
        begin, end = scored.reshape(-1, 2)[lane_of_row].T
        inside: npt.NDArray[np.bool_] = (begin <= positions) & (positions < end)
        return inside

    def _tiles(
        self,
        counts: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        slots: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """See `slot_attention`. The padding of a bucket is a lane of rows that see nothing."""
        group, bucket = self._options.heads_per_kv_head, self._options.bucket
        rows = bucket(max(1, self.num_rows))
        while True:
            lane_rows = np.append(counts, rows - self.num_rows)
            tiles_of = -(-lane_rows * group // TILE_ROWS)
            most = -(-rows * group // TILE_ROWS) + rows // MIN_LANE_ROWS
            if tiles_of.sum() <= most:
                break
            rows = bucket(rows + 1)
        self._num_rows_padded = rows
        lane = np.repeat(np.arange(len(lane_rows)), tiles_of)
        within = np.arange(len(lane)) - (np.cumsum(tiles_of) - tiles_of)[lane]
        tiles = np.zeros((most, TILE_COLUMNS), np.int64)
        tiles[: len(lane)] = np.stack(
            [
                np.append(slots, 0)[lane],
                np.append(starts, 0)[lane],
                np.append(self.first_rows, self.num_rows)[lane],
                lane_rows[lane],
                within * TILE_ROWS,
            ],
            axis=1,
        )
        return tiles

    def _lane_table(
        self, most: int, starts: npt.NDArray[np.int64], slots: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """See `StepColumns.lanes`. The padding of a bucket is a lane."""
        table = np.zeros((most + 1, 3), np.int64)
        table[: len(starts)] = np.stack([slots, starts, self.first_rows], axis=1)
        table[len(starts) :, 2] = self.rows_bucket
        table[len(starts), 2] = self.num_rows
        return table

    # K/V

    @staticmethod
    def _fresh(lane: Lane) -> npt.NDArray[np.int64]:
        """The positions that a lane stages and computes; those before it are in the slot."""
        spans = [np.arange(max(span.start, lane.start), span.stop) for span in lane.to_stage]
        return np.concatenate([np.zeros(0, np.int64), *spans])

    def _staged_rows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """See `StepColumns.stage_rows` and `stage_boundaries`."""
        rows, boundaries = [np.zeros(0, np.int64)], []
        for lane, first in zip(self.lanes, self.first_rows.tolist(), strict=True):
            if lane.to_stage:
                rows.append(self._fresh(lane) + (first - lane.start))
                at = lane.to_stage[0].stop - 1 - lane.start
                boundaries.append(first + at if at >= 0 else self.rows_bucket + lane.slot)
        return np.concatenate(rows), np.array(boundaries, np.int64)

    def _committed_rows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """See `StepColumns.commit_rows` and `commit_boundaries`."""
        tables, boundaries = [np.zeros((0, 3), np.int64)], []
        for commit in self.commits:
            positions = commit.positions()
            slots = np.full(len(positions), commit.slot)
            rows = np.arange(commit.staged.rows.start, commit.staged.rows.stop)
            tables.append(np.stack([rows, slots, positions], axis=1))
            boundaries.append((commit.staged.boundary_row, commit.slot))
        return np.concatenate(tables), np.array(boundaries, np.int64).reshape(-1, 2)
