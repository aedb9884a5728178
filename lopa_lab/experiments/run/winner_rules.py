"""Lookaheads whose winner is chosen by the tokens that a branch is expected to decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import numpy as np

from lopa_lab.experiments.run.lookaheads import MakeLookahead, Variation, VariedLopaSession
from lopa_lab.records.intervals import Array
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.branching import Fork
from lopa_ray.decoding.decoders.lopa import BlockSettings
from lopa_ray.decoding.lookahead import Lookahead
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.step_report import BranchReport

RIDGE = 1.0
"""Added to the diagonal of the normal equations of the standardised features."""

QUANTILES = (0.1, 0.25, 0.5)

BranchValue: TypeAlias = Callable[[Fork, BranchReport, float], float]
"""Fork, report of a branch with masks, and confidence threshold → what the winner has most of."""


def branch_features(fork: Fork, report: BranchReport, threshold: float) -> Array:
    """Features [9] of float64 of a branch: tokens it decides, masks, and its scores and probabilities."""
    probabilities, scores = report.probabilities, report.scores
    if not len(scores):
        return np.array([len(fork.decisions), *(0.0 for _ in range(8))])
    return np.array(
        [
            len(fork.decisions) + np.count_nonzero(probabilities > threshold),
            len(scores),
            scores.mean(),
            scores.min(),
            *np.quantile(scores, QUANTILES),
            probabilities.sum(),
            np.count_nonzero(probabilities > 0.5),
        ]
    )


def expected_fills(fork: Fork, report: BranchReport, threshold: float) -> float:
    """Tokens that the step decides if the branch wins, and a share of a token that grows with the mean score."""
    fills = len(fork.decisions) + int(np.count_nonzero(report.probabilities > threshold))
    mean = float(report.scores.mean())
    return fills + 0.5 + 0.5 * mean / (1.0 + abs(mean))


def summed_probability(fork: Fork, report: BranchReport, threshold: float) -> float:
    """The fork's tokens, and the sum of the probabilities at masked positions: expected fills if each is drawn alone.

    Unlike `expected_fills` it counts what lies below the threshold.
    """
    return len(fork.decisions) + float(report.probabilities.sum())


class ByValue(Lookahead):
    """Lookahead whose branch confidence is a `BranchValue`."""

    def __init__(self, settings: GenerationSettings, value: BranchValue) -> None:
        super().__init__(settings)
        self._value = value
        self._threshold = settings.confidence_threshold if isinstance(settings, BlockSettings) else 1.0

    def confidences(self, branches: Sequence[Fork], reports: Sequence[BranchReport]) -> tuple[float, ...]:
        """The value of each branch; one without masks has no equal."""
        return tuple(
            self._value(fork, report, self._threshold) if len(report.scores) else float("inf")
            for fork, report in zip(branches, reports, strict=True)
        )


def by_value(value: BranchValue) -> MakeLookahead:
    """Makes the lookahead whose winner has most of `value`."""
    return lambda settings, random: ByValue(settings, value)


@dataclass(frozen=True, slots=True)
class LinearPredictor:
    """Tokens that this and the next step decide, up to a constant.

    A branch's scores say what this step decides. The next step's is a linear function of `branch_features`.
    """

    weights: Array
    """[9], float64."""

    @classmethod
    def fit(cls, winners: Array, means: Array, decided: Array) -> LinearPredictor:
        """Fit by ridge regression.

        Features of winners [n, 9], means of the features over the branches of each step [n, 9], and tokens that the
        next step decided [n], all float64. The means are inputs of their own, so that the weights tell branches of
        one step apart, and not steps of which all branches decide much from others.
        """
        inputs = np.hstack([winners - means, means])
        scale = inputs.std(0) + 1e-9
        standard = inputs / scale - (inputs / scale).mean(0)
        normal = standard.T @ standard + RIDGE * np.eye(standard.shape[1])
        weights = np.linalg.solve(normal, standard.T @ (decided - decided.mean())) / scale
        return cls(weights[: winners.shape[1]])

    def __call__(self, fork: Fork, report: BranchReport, threshold: float) -> float:
        """The prediction for a branch."""
        features = branch_features(fork, report, threshold)
        return float(features[0] + features @ self.weights)


class RandomWinner(Variation):
    """All of LoPA's branches are evaluated and one of them is drawn evenly, so that a fit sees every kind of branch."""

    def select_winner(self, confidences: Sequence[float]) -> int:
        """Drawn evenly."""
        return self._random.randrange(len(confidences))


class WinnerRecorder(VariedLopaSession):
    """LoPA that keeps each step's features and the number of tokens that it decided."""

    def __init__(self, session: DecodeSession, make_lookahead: MakeLookahead, random: Random) -> None:
        super().__init__(session, make_lookahead, random)
        self.winners: list[Array] = []
        self.means: list[Array] = []
        """Over the branches of each step."""
        self.decided: list[int] = []

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        threshold = self.settings.confidence_threshold
        features = np.array(
            [
                branch_features(branch.fork, report, threshold)
                for branch, report in zip(self._branches, reports, strict=True)
            ]
        )
        outcome = super()._advance(plan, reports)
        self.winners.append(features[outcome.winner])
        self.means.append(features.mean(0))
        self.decided.append(len(outcome.adopted) + len(outcome.filled))
        return outcome


def fit_predictor(sessions: Sequence[WinnerRecorder]) -> LinearPredictor:
    """Fit to decoded requests: to each step but a request's last, with the tokens that the next step decided."""
    winners = [features for session in sessions for features in session.winners[:-1]]
    means = [features for session in sessions for features in session.means[:-1]]
    decided = [count for session in sessions for count in session.decided[1:]]
    return LinearPredictor.fit(np.array(winners), np.array(means), np.array(decided, dtype=np.float64))
