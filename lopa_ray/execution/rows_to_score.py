"""RowsToScore: the positions to score, in groups of which each is scored in one call.

Shape suffixes: N rows to score, including the padding of groups; M top tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.token_bitmasks import decompress_bitmask
from lopa_ray.execution.lane import Lane, params_of_lanes
from lopa_ray.execution.logit_change_tables import NO_CHANGES, LogitChangeTables, logit_changes_of_lane
from lopa_ray.execution.rule_memory import credit_rows, guess_rows, wanted_drafts
from lopa_ray.execution.scoring_kind import COLUMN, TARGETS, ScoringKind, candidates_kind, row_numbers
from lopa_ray.protocol.keyed_random import keyed_uniforms
from lopa_ray.protocol.scoring import (
    DRAW_COLUMNS,
    MEMORY_COLUMNS,
    ChooseTokens,
    ContinuationDrafts,
    DenoiseTokens,
    Drafted,
    ScoreCandidates,
    ScoreTargets,
    ShadowSlots,
)
from lopa_ray.protocol.step_report import BRANCH_COLUMNS, ScoredRows

if TYPE_CHECKING:
    from lopa_ray.execution.packing import PackingOptions


@dataclass(frozen=True, slots=True)
class ScoringGroup:
    kind: ScoringKind
    rows: range  # the rows of the group among the N, including padding
    max_top_k: int  # the largest `top_k` of the rows; 0 if the kind has none


class RowsToScore:
    """The rows of logits to score and their parameters. It also builds reports from the scores."""

    def __init__(
        self,
        lanes: Sequence[Lane],
        lane_of_row: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        options: PackingOptions,
    ) -> None:
        """`lane_of_row` and `positions`: int64 [rows]."""
        self._lanes, self._options = lanes, options
        self._lane_of_row, self.positions = lane_of_row, positions
        self._branches = [
            (at, lane.request.plan, lane.branch)
            for at, lane in enumerate(lanes)
            if lane.request is not None and lane.branch is not None
        ]
        self._params, self._params_of_lane = params_of_lanes(lanes)
        self._params_of_row = self._params_of_lane[lane_of_row]
        self._set_of_row = self._bitmask_of_rows()
        self._num_candidates = np.zeros(len(lanes), np.int64)
        """How many candidates each row of a lane has; 0: a token is chosen instead."""
        for lane, _, branch in self._branches:
            self._num_candidates[lane] = len(branch.candidates)
        kinds, kind_of_lane = self._kinds_of_lanes()
        kind_of_row = kind_of_lane[lane_of_row]
        self.groups: list[ScoringGroup] = []
        self._index = np.arange(len(positions))  # the index of each row among the N
        at = 0
        for index, kind in enumerate(kinds):
            of_group = np.flatnonzero(kind_of_row == index) if len(kinds) > 1 else self._index.copy()
            if not len(of_group):
                continue
            self._index[of_group] = np.arange(at, at + len(of_group))
            top_k = 0
            if kind.has_top_k:
                indices = np.unique(self._params_of_lane[lane_of_row[of_group]]).tolist()
                top_k = max(self._params[index].top_k or 0 for index in indices)
            padded = options.bucket(len(of_group))
            self.groups.append(ScoringGroup(kind, range(at, at + padded), top_k))
            at += padded
        self.size = at  # the number N of rows, including padding
        self.drafts = wanted_drafts(lanes)
        """What the step asks of the draft head, if it does."""
        of_rows = credit_rows(lanes, lane_of_row, positions)
        credits = np.zeros((self.size if len(of_rows) else 0, *of_rows.shape[1:]))
        credits[self._index[: len(of_rows)]] = of_rows
        self.columns: dict[str, npt.NDArray[Any]] = NO_CHANGES | {
            "credits": credits,
            "guesses": guess_rows(lanes, self.rows_of_lane),
            "score_numbers": self._numbers(),
            "ending_ids": self._ending_ids(),
            "candidates": self._candidates(),
            "bitmasks": self._bitmasks,
        }
        """The columns of `StepColumns` that are about these rows."""
        if any(logit_changes_of_lane(lane) is not None for lane in lanes):
            changes = LogitChangeTables(lanes, options.bucket)
            rows = np.zeros((self.size, 2), np.int64)
            rows[self._index] = changes.rows(lane_of_row)
            tables = {"canvas_changes": changes.of_canvases, "fill_changes": changes.of_fills}
            self.columns |= {"change_rows": rows} | tables

    def rows_of_lane(self, lane: int) -> npt.NDArray[np.int64]:
        """The rows of a lane among the N, in order of their positions, int64 [rows of the lane]."""
        return self._index[self._rows_of(lane)]

    def _rows_of(self, lane: int) -> npt.NDArray[np.int64]:
        return np.flatnonzero(self._lane_of_row == lane)

    def padded(self, of_rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Reorder values of rows, int64 [rows], to the order of the N rows: int64 [N]. Padding gets 0."""
        padded = np.zeros(self.size, np.int64)
        padded[self._index] = of_rows
        return padded

    def _bitmask_of_rows(self) -> npt.NDArray[np.int64]:
        """The index of each row's set of tokens in `bitmasks`; 0: any token."""
        set_of_row = np.zeros(len(self.positions), np.int64)
        index_of: dict[bytes, int] = {}
        for lane, plan, branch in self._branches:
            for row in self._rows_of(lane).tolist() if branch.bitmask_ids else ():
                packed = plan.token_bitmask(branch, int(self.positions[row]))
                if packed is not None:
                    set_of_row[row] = index_of.setdefault(packed, len(index_of) + 1)
        width = -(-self._options.vocabulary.size // 64) * 8
        self._bitmasks = np.zeros((len(index_of) + 1 if index_of else 0, width), np.uint8)
        self._bitmasks[:1] = 255
        for packed, index in index_of.items():
            bits = decompress_bitmask(packed)
            self._bitmasks[index, : len(bits)] = bits
        return set_of_row

    def _kinds_of_lanes(self) -> tuple[list[ScoringKind], npt.NDArray[np.int64]]:
        index_of: dict[ScoringKind, int] = {}
        index_of_key: dict[tuple[object, ...], int] = {}  # hashing kinds is slow
        kind_of_lane = np.zeros(len(self._lanes), np.int64)
        vocab_size, most = self._options.vocabulary.size, int(self._num_candidates.max(initial=0))
        for lane, plan, branch in self._branches:
            params = int(self._params_of_lane[lane])
            is_constrained, has_logit_changes = bool(branch.bitmask_ids), plan.logit_changes is not None
            memory = type(self._lanes[lane].memory)
            if memory is ContinuationDrafts:  # asks nothing of the logits
                memory = NoneType
            key = (params, is_constrained, has_logit_changes, type(branch.scoring), memory)
            if key not in index_of_key:
                if isinstance(branch.scoring, ScoreCandidates):
                    kind = candidates_kind(most)
                elif isinstance(branch.scoring, ScoreTargets):
                    kind = TARGETS
                else:
                    kind = ScoringKind.of(
                        self._params[params],
                        vocab_size,
                        is_constrained=is_constrained,
                        has_logit_changes=has_logit_changes,
                        memory=memory,
                    )
                index_of_key[key] = index_of.setdefault(kind, len(index_of))
            kind_of_lane[lane] = index_of_key[key]
        return list(index_of), kind_of_lane

    def _numbers(self) -> npt.NDArray[np.float64]:
        table = np.array([row_numbers(params) for params in self._params], np.float64)
        if not self.size:
            return np.zeros((0, len(COLUMN)))
        numbers: npt.NDArray[np.float64] = (
            table[self.padded(self._params_of_row)] if len(table) > 1 else table.repeat(self.size, axis=0)
        )
        if any(params.temperature > 0 for params in self._params):
            keys = np.zeros(len(self._lanes), np.int64)
            for lane, _, branch in self._branches:
                if isinstance(branch.scoring, ChooseTokens):
                    keys[lane] = branch.scoring.draw_key
            seeds = np.array([params.seed & (2**64 - 1) for params in self._params], np.uint64)
            numbers[self._index, COLUMN.uniform] = keyed_uniforms(
                seeds[self._params_of_row], keys[self._lane_of_row], self.positions
            )
        if len(self._bitmasks):
            numbers[self._index, COLUMN.bitmask] = self._set_of_row
        for lane, _, branch in self._branches:
            match branch.scoring:
                case DenoiseTokens(draws):
                    column, of_scored = COLUMN.uniform, np.array(draws)
                case (
                    ScoreTargets(targets)
                    | ChooseTokens(memory=ShadowSlots(tokens=targets) | Drafted(targets))
                ):
                    column, of_scored = COLUMN.target, np.array(targets)
                case _:
                    continue
            rows = self._rows_of(lane)
            numbers[self._index[rows], column] = of_scored[self.positions[rows] - branch.scored.start]
        return numbers

    def _ending_ids(self) -> npt.NDArray[np.int64]:
        none = np.zeros((self.size, 0), np.int64)
        if not any(params.no_eos_before for params in self._params):
            return none
        before = np.array([params.no_eos_before for params in self._params], np.int64)
        early = self.positions < before[self._params_of_row]
        if not early.any():
            return none
        of_params = [
            {self._options.vocabulary.eos_token_id, *params.stop_token_ids} for params in self._params
        ]
        table = np.full((len(of_params), max(map(len, of_params))), -1, np.int64)
        for at, of_answer in enumerate(of_params):
            table[at, : len(of_answer)] = sorted(of_answer)
        ids = np.full((self.size, table.shape[1]), -1, np.int64)
        ids[self._index[early]] = table[self._params_of_row[early]]
        return ids

    def _candidates(self) -> npt.NDArray[np.int64]:
        if not self._num_candidates.any():
            return np.zeros((0, 0), np.int64)
        of_lane = np.zeros((len(self._lanes), int(self._num_candidates.max())), np.int64)
        for lane, _, branch in self._branches:
            of_lane[lane, : len(branch.candidates)] = branch.candidates
        width = max(group.kind.top_logprobs for group in self.groups if group.kind.has_candidates)
        candidates = np.zeros((self.size, width), np.int64)
        candidates[self._index, : of_lane.shape[1]] = of_lane[self._lane_of_row]
        return candidates

    def report(self, flat: npt.NDArray[np.float64], columns: int) -> tuple[npt.NDArray[np.int64], ScoredRows]:
        """The branches of a `StepReport`, int64 [branches, 7], and its rows, from what `LMHead.score` returned,
        fp64."""
        count = np.bincount(self._lane_of_row, minlength=len(self._lanes))
        width = np.zeros(len(self._lanes), np.int64)
        memory = [MEMORY_COLUMNS[type(lane.memory)] for lane in self._lanes]
        draws = [DRAW_COLUMNS * self._params[at].draws for at in self._params_of_lane]
        table = []
        for at, lane in enumerate(self._lanes):
            if lane.request is not None and lane.index >= 0:
                plan = lane.request.plan
                width[at] = self._num_candidates[at] or plan.sampling_params.top_logprobs
                sizes = int(count[at]), int(width[at]), memory[at], draws[at]
                table.append((lane.request.request_id, plan.step, lane.index, *sizes))
        size = self.size * columns
        scores = flat[:size].reshape(-1, columns)[self._index]
        tokens, logprobs = self._tops(flat[size:], width[self._lane_of_row])
        drawn = self._asked(flat, np.array(draws, np.int64) * (count > 0))
        before_draws = flat[: -DRAW_COLUMNS * self.size] if len(drawn) else flat
        rows = ScoredRows(
            self.positions.astype(np.int32),
            scores[:, 0].astype(np.int32),
            np.ascontiguousarray(scores[:, 1]),
            scores[:, 2].astype(np.float32),
            np.ascontiguousarray(scores[:, 3]),
            tokens,
            logprobs,
            memory=self._asked(before_draws, np.array(memory, np.int64) * (count > 0)),
            draws=drawn,
        )
        return np.array(table, np.int64).reshape(-1, BRANCH_COLUMNS), rows

    def _asked(
        self, flat: npt.NDArray[np.float64], columns_of_lane: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """What ends `flat` and is asked of some lanes, memory or draws, by how many columns each has of it."""
        most = int(columns_of_lane.max(initial=0))
        if not most:
            return np.zeros(0)
        of_rows = flat[-self.size * most :].reshape(-1, most)[self._index]
        is_asked = np.arange(most) < columns_of_lane[self._lane_of_row][:, None]
        asked: npt.NDArray[np.float64] = of_rows[is_asked]
        return asked

    def _tops(
        self, flat: npt.NDArray[np.float64], width: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        total = int(width.sum())
        tokens, logprobs = np.zeros(total, np.int32), np.zeros(total, np.float32)
        first = np.cumsum(width) - width
        at = 0
        for group in self.groups:
            m = group.kind.top_logprobs
            if m:
                of_group = flat[at : at + 2 * len(group.rows) * m].reshape(2, -1, m)
                at += of_group.size
                rows = np.flatnonzero((self._index >= group.rows.start) & (self._index < group.rows.stop))
                within = self._index[rows] - group.rows.start
                is_asked = np.arange(m) < width[rows][:, None]  # candidates are padded
                to = (first[rows][:, None] + np.arange(m))[is_asked]
                tokens[to], logprobs[to] = of_group[0, within][is_asked], of_group[1, within][is_asked]
        return tokens, logprobs
