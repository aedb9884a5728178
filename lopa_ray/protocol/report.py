"""BranchReport and StepReport: what workers answer to the plans of a step, and how long it took them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class BranchReport:
    """Scores of one branch's masked positions, ascending by position.

    `positions` and `tokens` are int32 [n], `probabilities` (of the chosen token, after
    temperature, top-p and top-k) and `scores` (by the plan's ranking) float64 [n], `logprobs`
    (of the chosen token, plain softmax) float32 [n]. `top_tokens` int32 [n, m] and
    `top_logprobs` float32 [n, m] are the m most likely tokens of the plain softmax, most
    likely first (m = 0 unless asked for).
    """

    epoch: int
    step: int
    branch: int
    positions: npt.NDArray[np.int32]
    tokens: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    logprobs: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float64]
    top_tokens: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepReport:
    """A worker's answer: the reports of its branches, keyed by request id."""

    epoch: int
    step: int
    reports: tuple[tuple[int, BranchReport], ...]
    commit_s: float = 0.0
    """Seconds that the worker spent on commits, waiting for K/V included."""
    forward_s: float = 0.0
    """Seconds that it spent on the forward, staging and scores."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Where the time of one step of a group went, in seconds; the workers' parts are the slowest one's."""

    plan: float
    scatter: float
    commit: float
    forward: float
    gather: float
    """Waiting for reports beyond the slowest worker's own time: messages and queues."""
    select: float
