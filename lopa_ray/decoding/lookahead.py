"""Lookahead: the race of an anchor and its forks, for any decoder (LoPA, arXiv 2512.16229, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lopa_ray.config.branch_confidence import parse_metric
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.lookahead_settings import LookaheadSettings
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branch_budget import AutoBudget
from lopa_ray.decoding.branching import Fork, Score, lookahead_forks
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.report import BranchReport

DONE = 1.0
"""Confidence of a branch without masks: above every probability and every neg-entropy."""


def adopted(fork: Fork | None) -> tuple[Decision, ...]:
    """What a branch adds to the anchor."""
    return () if fork is None else (fork.decision,)


class Lookahead:
    """The forks of the last winner, and how they are compared with the anchor. None stands for the anchor."""

    def __init__(self, settings: GenerationSettings) -> None:
        """Where settings know no lookahead there is the anchor alone, ever."""
        if not isinstance(settings, LookaheadSettings):
            settings = LookaheadSettings(decoder=settings.decoder)
        self._settings = settings
        self._metric = parse_metric(self._settings.branch_confidence)
        self._auto = AutoBudget(settings.branch_limit) if settings.num_branches == "auto" else None
        self._forks: list[Fork] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A metric is a closure, which pickle does not take; it is made anew."""
        return Lookahead, (self._settings,), {"_auto": self._auto, "_forks": self._forks}

    @property
    def on(self) -> bool:
        """Whether there may ever be forks."""
        return self._settings.branch_limit > 1

    @property
    def adopts_last(self) -> bool:
        """A fork that fills a block's last mask has none left and wins, so it need not run: it can be adopted."""
        return self.on and self._settings.anchor != "win"

    def field(self, num_branches: int) -> list[Fork | None]:
        """Who runs in a step of at most `num_branches`: forks first, so that ties go to them, then the anchor."""
        if self._auto is not None:
            num_branches = min(num_branches, self._auto.branches)
        omitted = self._settings.anchor == "omit"
        forks = 0 if num_branches == 1 else num_branches - (not omitted)
        field: list[Fork | None] = list(self._forks[:forks])
        return field if omitted and field else [*field, None]

    def confidences(self, field: Sequence[Fork | None], reports: Sequence[BranchReport]) -> tuple[float, ...]:
        """Branch confidence, mixed with creation confidence (1.0 for the anchor); DONE for a branch without masks."""
        alpha = self._settings.creation_confidence_alpha
        return tuple(
            mix(1.0 if fork is None else fork.creation, self._confidence(report), alpha)
            for fork, report in zip(field, reports, strict=True)
        )

    def _confidence(self, report: BranchReport) -> float:
        scores = report.scores.tolist()
        return self._metric(scores) if scores else DONE

    def winner(self, confidences: Sequence[float]) -> int:
        """Index of the highest confidence; the anchor's, where it is set to win."""
        if self._auto is not None:
            self._auto.observe(confidences)
        return len(confidences) - 1 if self._settings.anchor == "win" else winner(confidences)

    def look(self, masked: Iterable[int], scores: dict[int, Score], fit: ConstraintState | None) -> None:
        """Make the next step's forks from what the winner's scores say of the positions that are still masked."""
        most = 0 if not self.on else self._settings.branch_limit - (self._settings.anchor != "omit")
        self._forks = lookahead_forks(masked, scores, most, fit)
        if all(fork.decision.probability > self._settings.lookahead_below for fork in self._forks):
            self._forks = []


def mix(creation: float, confidence: float, alpha: float) -> float:
    """α · creation confidence + (1 - α) · branch confidence.

    The creation confidence is the score of the one token that a lookahead branch adds to
    the anchor, and 1.0 for the anchor itself.
    """
    return alpha * creation + (1.0 - alpha) * confidence


def winner(confidences: Sequence[float]) -> int:
    """Index of the highest confidence; ties go to the first."""
    return max(range(len(confidences)), key=confidences.__getitem__)
