"""BranchReport and StepReport: what workers answer to the plans of a step, and how long it took them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRows:
    """Scores of the rows of many branches, as columns; types as in `BranchReport`. `top_tokens`, `top_logprobs`,
    `memory` and `draws` are [t], row by row, of which each may have a number of its own."""

    positions: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    logprobs: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float64]
    top_tokens: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    memory: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), kw_only=True)
    draws: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), kw_only=True)

    @classmethod
    def empty(cls) -> Self:
        return cls(**{name: np.zeros(0, dtype) for name, dtype in _COLUMNS.items()})


@dataclass(frozen=True, slots=True, eq=False)
class BranchReport(ScoredRows):
    """Scores of one branch's scored positions, ascending: the masked positions, or all (see `Branch.scored`).
    `positions` and `tokens` are int32 [n], `probabilities` (of the chosen token, after temperature, top-p and top-k)
    and `scores` (by the plan's ranking) float64 [n], `logprobs` (of the chosen token, plain softmax) float32 [n].
    `top_tokens` int32 [n, m] and `top_logprobs` float32 [n, m] are the m most likely tokens of the plain softmax, most
    likely first (m = 0 unless asked for). `memory` float64 [n, w] is what a rule asks that looks back: the divergence
    from `StateBefore` in nats, the probability in `ShadowSlots`, of a `Drafted` token its probability, the token that
    would be in its place, and that one's probability, under `Credits` the most likely token without credits and its
    log-probability, and of `ContinuationDrafts`, in the row after the accepted tokens, the tokens of each beam, and the
    probability of each beam as far as to that token. `draws` float64 [n, 2] are log-probability and entropy of the
    `Draw` of each token (empty unless `SamplingParams.draws`).

    Of `ScoreTargets`, the targets are `tokens`, and probabilities and scores are of the plain softmax too. Of
    `ScoreCandidates`, the candidates are `top_tokens`, in the branch's order, and `top_logprobs` are their
    log-probabilities under the softmax over all tokens that can be generated, so without the mask token. The other
    columns are about the first candidate."""

    step: int  # the step of the branch's plan
    branch: int

    def with_tops(self, most: int) -> Self:
        """The report with at most so many of the most likely tokens."""
        return replace(self, top_tokens=self.top_tokens[:, :most], top_logprobs=self.top_logprobs[:, :most])

    def select(self, rows: npt.NDArray[np.bool_]) -> Self:
        """The report of some of the positions alone, bool [n]."""
        return replace(self, **{n: getattr(self, n)[rows] for n in _COLUMNS if len(getattr(self, n))})


_COLUMNS: dict[str, type[np.generic]] = {
    "positions": np.int32,
    "tokens": np.int32,
    "probabilities": np.float64,
    "logprobs": np.float32,
    "scores": np.float64,
    "top_tokens": np.int32,
    "top_logprobs": np.float32,
    "memory": np.float64,
    "draws": np.float64,
}

_ROW_COLUMNS, _TOP_COLUMNS = tuple(_COLUMNS)[:5], tuple(_COLUMNS)[5:7]

BRANCH_COLUMNS = 7

_HEADER = struct.Struct("=7q2d")
"""Epoch, step, branches, rows, top tokens, numbers of memory, numbers of draws; seconds of commits and forward."""


@dataclass(frozen=True, slots=True, eq=False)
class StepReport:
    """A worker's answer: the scores of its branches. Pickled it is one buffer."""

    epoch: int
    step: int
    branches: npt.NDArray[
        np.int64
    ]  # [B, 7]: request id, step, branch, rows; top tokens, memory and draws of a row
    rows: ScoredRows  # the scores of all branches, in order
    commit_s: float = 0.0  # seconds of commits, waiting for K/V included; an accelerator measures them
    forward_s: float = 0.0  # seconds that it spent on packing, the forward, staging and scores

    @classmethod
    def without_branches(cls, epoch: int, step: int, commit_s: float = 0.0, forward_s: float = 0.0) -> Self:
        branches = np.zeros((0, BRANCH_COLUMNS), np.int64)
        return cls(epoch, step, branches, ScoredRows.empty(), commit_s, forward_s)

    @property
    def reports(self) -> list[tuple[int, BranchReport]]:
        """Request id and report of each branch; the arrays are views."""
        reports = []
        row = top = at = drawn = 0
        rows = self.rows
        for request_id, step, branch, count, width, remembered, numbers in self.branches.tolist():
            of_rows, of_tops = slice(row, row + count), slice(top, top + count * width)
            columns = {name: getattr(rows, name)[of_rows] for name in _ROW_COLUMNS}
            tops = {name: getattr(rows, name)[of_tops].reshape(count, width) for name in _TOP_COLUMNS}
            memory = rows.memory[at : at + count * remembered].reshape(count, remembered)
            draws = rows.draws[drawn : drawn + count * numbers].reshape(count, numbers)
            report = BranchReport(**columns, **tops, memory=memory, draws=draws, step=step, branch=branch)
            reports.append((request_id, report))
            row, top, at, drawn = of_rows.stop, of_tops.stop, at + memory.size, drawn + draws.size
        return reports

    def __reduce__(self) -> tuple[Any, ...]:
        rows = self.rows
        sizes = (
            len(self.branches),
            len(rows.positions),
            len(rows.top_tokens),
            len(rows.memory),
            len(rows.draws),
        )
        header = _HEADER.pack(self.epoch, self.step, *sizes, self.commit_s, self.forward_s)
        arrays = self.branches, *(getattr(rows, name) for name in _BY_SIZE)
        parts = np.frombuffer(header, np.uint8), *(array.reshape(-1).view(np.uint8) for array in arrays)
        return _unpack, (np.concatenate(parts),)


_BY_SIZE = sorted(_COLUMNS, key=lambda name: -np.dtype(_COLUMNS[name]).itemsize)
"""Columns in the order in which a buffer has them, so that each is aligned."""


def reports_by_request(step_reports: Sequence[StepReport]) -> dict[int, list[BranchReport]]:
    """The reports of each request's branches in a step, by what its workers reported."""
    by_request: dict[int, list[BranchReport]] = {}
    for step_report in step_reports:
        for request_id, report in step_report.reports:
            by_request.setdefault(request_id, []).append(report)
    return by_request


def _unpack(buffer: npt.NDArray[np.uint8]) -> StepReport:
    epoch, step, count, rows, tops, memory, draws, commit_s, forward_s = _HEADER.unpack_from(buffer.data)
    cells = np.frombuffer(buffer, np.int64, BRANCH_COLUMNS * count, _HEADER.size)
    branches, at = cells.reshape(count, BRANCH_COLUMNS), _HEADER.size + cells.nbytes
    columns = {}
    sizes = dict.fromkeys(_TOP_COLUMNS, tops) | {"memory": memory, "draws": draws}
    for name in _BY_SIZE:
        dtype = np.dtype(_COLUMNS[name])
        columns[name] = np.frombuffer(buffer, dtype, sizes.get(name, rows), at)
        at += columns[name].nbytes
    return StepReport(epoch, step, branches, ScoredRows(**columns), commit_s, forward_s)


@dataclass(frozen=True, slots=True)
class StepTiming:
    """The parts of one step's time of a group, in seconds; the workers' parts are the slowest worker's."""

    plan: float
    scatter: float
    commit: float
    forward: float
    gather: float
    """Time from sending the plans to the last report, beyond the slowest worker's own time: messages, queues, and with
    overlap the other step in flight."""
    select: float


PHASES = tuple(field.name for field in fields(StepTiming))
