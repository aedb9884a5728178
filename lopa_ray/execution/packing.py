"""Packing: builds all inputs of a step's forward from its lanes, on the host in numpy, for one copy to the device."""

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
from lopa_ray.execution.self_conditioning import signal_rows, stage_signals
from lopa_ray.execution.staging import StagedCommit, fresh_positions
from lopa_ray.execution.step_columns import StepColumns, copy_to_device
from lopa_ray.kernels.padding import bucket_rows
from lopa_ray.kernels.slot_attention import MAX_SPLIT_ROWS, PART_COLUMNS, PART_KEYS, TILE_COLUMNS, TILE_ROWS
from lopa_ray.protocol.vocabulary import Vocabulary

MIN_LANE_ROWS = 4
"""A bucket of rows has tiles for lanes of this many rows each. Steps with more lanes get more tiles, in larger buckets
of tiles."""


def bucket_tiles(rows: int, heads_per_kv_head: int) -> int:
    """The number of tiles of a step in a bucket of `rows` rows, unless it has many short lanes."""
    return -(-rows * heads_per_kv_head // TILE_ROWS) + rows // MIN_LANE_ROWS


NOTHING = np.zeros(0, np.int64)

NO_WEIGHTS = np.zeros(0)

NO_PARTS = np.zeros((0, PART_COLUMNS), np.int64)

NO_RUN = (0, 0)


@dataclass(frozen=True, slots=True)
class PackingOptions:
    capacity: int  # positions of a slot
    heads_per_kv_head: int
    vocabulary: Vocabulary
    bucket: Callable[[int], int]
    has_draft_adapter: bool = False


SLOT, START, FIRST, ROWS, SCORED_FROM, SCORED_TO, SCORES_DECIDED, CAUSAL_STOP = LANE_COLUMNS = range(8)
"""Columns of the table of lanes: slot, position of the first row, index of that row, number of rows, the start and end
of the positions to score, whether these are scored where they are decided too, and the end of its causal rows."""


class Packing:
    def __init__(
        self, lanes: Sequence[Lane], commits: Sequence[StagedCommit], options: PackingOptions
    ) -> None:
        """Pack `lanes`, and the rows to commit before the forward. Raises CapacityError for positions beyond a slot."""
        self.lanes, self.commits = lanes, commits
        self.options = options
        # The padding of a bucket is the last lane. Its rows see no positions.
        table = []
        for lane in lanes:
            scored = lane.scored
            row = lane.slot, lane.start, 0, len(lane.canvas), scored.start, scored.stop
            table.append((*row, lane.scores_decided, lane.causal_stop))
        self._table = np.array([*table, (0,) * len(LANE_COLUMNS)], np.int64)
        self._table[:, FIRST] = np.cumsum(self._table[:, ROWS]) - self._table[:, ROWS]
        self.first_rows: list[int] = self._table[:, FIRST].tolist()
        """The first row of each lane, then the end of the last lane."""
        self.num_rows = self.first_rows[-1]
        self.longest_lane = max((len(lane.canvas) for lane in lanes), default=0)
        ids = np.concatenate([NOTHING, *(lane.input_ids if lane.fills else lane.canvas for lane in lanes)])
        slot, start, first, rows, scored_from, scored_to, scores_decided, causal_stop = self._table.T
        lane_of_row = np.repeat(np.arange(len(table)), rows[:-1])
        positions = np.arange(self.num_rows) + (start - first)[lane_of_row]
        runs = np.array([NO_RUN, *(run for lane in lanes for run in lane.runs())], np.int64)
        stops = np.repeat(runs[:, 1], runs[:, 0])
        self._check_capacity(positions, stops)
        tiles, parts = self._tiles(lane_of_row, stops)

        is_masked = ids == options.vocabulary.mask_token_id
        open_rows = np.flatnonzero(is_masked | (scores_decided[lane_of_row] > 0))
        of_open, at = lane_of_row[open_rows], positions[open_rows]
        scored_rows = open_rows[(scored_from[of_open] <= at) & (at < scored_to[of_open])]
        scoring_lanes = lane_of_row[scored_rows]
        # A lane may score the position behind its last row.
        end = start + rows
        further = np.flatnonzero((scored_from <= end) & (end < scored_to) & (end <= causal_stop))
        if len(further):
            among = np.searchsorted(scoring_lanes, further, side="right")
            scored_rows = np.insert(scored_rows, among, (first + rows)[further])
            scoring_lanes = np.insert(scoring_lanes, among, further)
        scored_positions = scored_rows + (start - first)[scoring_lanes]
        self.rows_to_score = RowsToScore(lanes, scoring_lanes, scored_positions, options)
        # Where the row before a position decides it, a lane's first position is decided by the slot's boundary row.
        is_causal = scored_positions <= causal_stop[scoring_lanes]
        deciding = scored_rows - np.where(is_causal, 1, options.vocabulary.shifted)
        boundary = self.rows_bucket + slot[scoring_lanes]
        deciding = np.where(deciding >= first[scoring_lanes], deciding, boundary)
        rows_beside, lane_beside = NOTHING, np.array([lane.beside for lane in lanes], np.int64)
        if lane_beside.any():
            of_row = (np.arange(len(lanes)) + lane_beside)[scoring_lanes]
            rows_beside = deciding + (first - start)[of_row] - (first - start)[scoring_lanes]
            rows_beside = np.where(deciding < self.rows_bucket, rows_beside, deciding)  # boundary rows
            rows_beside[lane_beside[scoring_lanes] == 0] = -1
            rows_beside = self.rows_to_score.padded(rows_beside)
        canvas_length = options.vocabulary.canvas_length
        stage_rows, stage_boundaries = self._staged_rows()
        commit_rows, commit_boundaries = self._committed_rows()
        self.columns: StepColumns[npt.NDArray[np.generic]] = StepColumns(
            ids=self._pad(ids),
            input_weights=self._input_weights(),
            signal_rows=signal_rows(lanes, self.first_rows, self.rows_bucket, canvas_length),
            draft_rows=self._draft_rows(),
            positions=self._pad(positions),
            stops=self._pad(stops),
            tiles=tiles,
            parts=parts,
            lanes=self._lane_table(len(tiles)),
            commit_rows=commit_rows,
            commit_boundaries=commit_boundaries,
            stage_rows=stage_rows,
            stage_boundaries=stage_boundaries,
            stage_signals=stage_signals(lanes, self.rows_to_score, canvas_length),
            score_rows=self.rows_to_score.padded(deciding),
            rows_beside=rows_beside,
            **self.rows_to_score.columns,
        )

    def to_device(self, device: torch.device) -> StepColumns[Tensor]:
        """See `copy_to_device`."""
        return copy_to_device(self.columns, device)

    @property
    def has_staged_rows(self) -> bool:
        return len(self.columns.stage_boundaries) > 0

    @cached_property
    def stage_ranges(self) -> list[range]:
        """The staged rows of each staging lane, in order."""
        counts = [len(fresh_positions(lane.to_stage, lane.start)) for lane in self.lanes if lane.to_stage]
        ends = np.cumsum(counts).tolist()
        return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]

    # Rows

    def _pad(self, column: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        padded = np.zeros(self.rows_bucket, np.int64)
        padded[: len(column)] = column
        return padded

    def _input_weights(self) -> npt.NDArray[np.float64]:
        of_lanes = [lane.input_weights() for lane in self.lanes]
        if all(of_lane is None for of_lane in of_lanes):
            return NO_WEIGHTS
        weights = np.ones(self.rows_bucket)
        for of_lane, first in zip(of_lanes, self.first_rows, strict=False):
            if of_lane is not None:
                weights[first : first + len(of_lane)] = of_lane
        return weights

    def _draft_rows(self) -> npt.NDArray[np.float64]:
        if not self.options.has_draft_adapter or not any(lane.draft_rows for lane in self.lanes):
            return NO_WEIGHTS
        draft_rows = np.zeros(self.rows_bucket)
        for lane, end in zip(self.lanes, self.first_rows[1:], strict=False):
            draft_rows[end - lane.draft_rows : end] = 1
        return draft_rows

    def _check_capacity(self, positions: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> None:
        reach = max(int(positions.max(initial=-1)) + 1, int(stops.max(initial=0)))
        if reach > self.options.capacity:
            raise CapacityError(
                f"{reach} positions do not fit a slot of {self.options.capacity}; raise max_model_len "
                "or shorten the request"
            )

    def _tiles(
        self, lane_of_row: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The tiles of the step, and the parts of tiles that are split (see `slot_attention`). `lane_of_row` and
        `stops` are of the rows without padding. This also sets `rows_bucket`."""
        group = self.options.heads_per_kv_head
        rows = self.rows_bucket = self.options.bucket(max(1, self.num_rows))
        self._table[-1, ROWS] = rows - self.num_rows
        tiles_of = -(-self._table[:, ROWS] * group // TILE_ROWS)
        ends = np.cumsum(tiles_of)
        most = max(bucket_tiles(rows, group), bucket_rows(int(ends[-1])))
        lane = np.repeat(np.arange(len(tiles_of)), tiles_of)
        tiles = np.zeros((most, TILE_COLUMNS), np.int64)
        tiles[: len(lane), : ROWS + 1] = self._table[lane, : ROWS + 1]
        tiles[: len(lane), ROWS + 1] = (np.arange(len(lane)) - (ends - tiles_of)[lane]) * TILE_ROWS
        if stops.max(initial=0) <= PART_KEYS:
            return tiles, NO_PARTS
        seen = np.zeros(len(self._table), np.int64)
        np.maximum.at(seen, lane_of_row, stops)
        is_short = self._table[:, ROWS] <= MAX_SPLIT_ROWS
        parts_of = np.where(is_short, np.maximum(-(-seen // PART_KEYS), 1), 1)[lane]
        split = np.flatnonzero(parts_of > 1)
        if not len(split):
            return tiles, NO_PARTS
        of_split, count = parts_of[split], int(parts_of[split].sum())
        first = np.cumsum(of_split) - of_split
        parts = np.zeros((bucket_rows(count), PART_COLUMNS), np.int64)
        parts[:count, :TILE_COLUMNS] = np.repeat(tiles[split], of_split, axis=0)
        parts[:count, TILE_COLUMNS] = np.arange(count) - np.repeat(first, of_split)
        parts[:count, TILE_COLUMNS + 1] = np.repeat(of_split, of_split)
        tiles[split] = 0  # no tile; the other tiles stay where they are
        return tiles, parts

    def _lane_table(self, most: int) -> npt.NDArray[np.int64]:
        with_rows = self._table[self._table[:, ROWS] > 0]  # no more lanes than tiles
        lanes = np.zeros((most + 1, FIRST + 1), np.int64)
        lanes[: len(with_rows)] = with_rows[:, : FIRST + 1]
        lanes[len(with_rows) :, FIRST] = self.rows_bucket
        return lanes

    # K/V

    def _staged_rows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        rows, boundaries = [NOTHING], []
        if not any(lane.to_stage for lane in self.lanes):
            return NOTHING, NOTHING
        for lane, first in zip(self.lanes, self.first_rows, strict=False):
            if lane.to_stage:
                rows.append(fresh_positions(lane.to_stage, lane.start) + (first - lane.start))
                at = lane.to_stage[0].stop - 1 - lane.start
                boundaries.append(first + at if at >= 0 else self.rows_bucket + lane.slot)
        return np.concatenate(rows), np.array(boundaries, np.int64)

    def _committed_rows(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        tables, boundaries = [NOTHING.reshape(0, 3)], []
        if not self.commits:
            return tables[0], NOTHING.reshape(0, 2)
        for commit in self.commits:
            positions = fresh_positions(commit.spans, commit.staged.start)
            slots = np.full(len(positions), commit.slot)
            rows = np.arange(commit.staged.rows.start, commit.staged.rows.stop)
            tables.append(np.stack([rows, slots, positions], axis=1))
            boundaries.append((commit.staged.boundary_row, commit.slot))
        return np.concatenate(tables), np.array(boundaries, np.int64).reshape(-1, 2)
