"""Lookahead: an anchor and its forks, evaluated together, for any decoder (LoPA, arXiv 2512.16229, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, islice

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branch_budget import AutoBudget
from lopa_ray.decoding.branch_confidence import parse_metric
from lopa_ray.decoding.branching import ANCHOR, Fork, Scores
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.protocol.step_report import BranchReport

NO_MASKS_CONFIDENCE = 1.0  # where no mask is left: above every probability and every neg-entropy


class Lookahead:
    """The forks of the last winner, and how they are compared with the anchor."""

    def __init__(self, settings: GenerationSettings) -> None:
        """Make a lookahead; under settings without one, the anchor is the only branch of every step."""
        if not isinstance(settings, LookaheadSettings):
            settings = LookaheadSettings(decoder=settings.decoder)
        self._settings = settings
        self._metric = parse_metric(self._settings.branch_confidence)
        self._auto_budget = AutoBudget(settings.branch_limit) if settings.num_branches == "auto" else None
        self._forks: list[Fork] = []

    @property
    def fills_last_mask(self) -> bool:
        """Whether a block's last mask is filled at once: the fork that fills it has no mask left, and so the highest
        branch confidence. Where the anchor could still win, it would fill the same position a step later."""
        return self._settings.branch_limit > 1

    def next_branches(self, num_branches: int) -> list[Fork]:
        """The branches of a step, at most `num_branches`: forks first, so that ties go to them, then the anchor."""
        if self._auto_budget is not None:
            num_branches = min(num_branches, self._auto_budget.num_branches)
        return [*self._forks[: num_branches - 1], ANCHOR]

    def confidences(self, branches: Sequence[Fork], reports: Sequence[BranchReport]) -> tuple[float, ...]:
        alpha = self._settings.creation_confidence_alpha
        return tuple(
            alpha * fork.creation_confidence + (1.0 - alpha) * self._confidence(report)
            for fork, report in zip(branches, reports, strict=True)
        )

    def _confidence(self, report: BranchReport) -> float:
        scores = report.scores.tolist()
        return self._metric(scores) if scores else NO_MASKS_CONFIDENCE

    def select_winner(self, confidences: Sequence[float]) -> int:
        if self._auto_budget is not None:
            self._auto_budget.observe(confidences)
        return best_branch(confidences)

    def update_forks(self, masked: Iterable[int], scores: Scores, state: ConstraintState | None) -> None:
        self._forks = self._best_forks(masked, scores, state, self._settings.branch_limit - 1)

    def _best_forks(
        self, masked: Iterable[int], scores: Scores, state: ConstraintState | None, max_forks: int
    ) -> list[Fork]:
        """A fork for each of the `max_forks` best-ranked masked positions that a constraint allows, best first, or with
        two tokens per fork for the pairs with the highest mean scores. Equal scores keep their order."""
        ranked = sorted(masked, key=lambda p: -scores[p].score)
        forks: Iterable[Fork] = (Fork.of(scores[p]) for p in ranked)
        if self._settings.tokens_per_fork == 2 and len(ranked) > 1:
            # The n best pairs are among the n + 1 best positions; a constraint may rule some of them out.
            candidates = ranked if state is not None else ranked[: max_forks + 1]
            pairs = [Fork.of(scores[p], scores[q]) for p, q in combinations(candidates, 2)]
            forks = sorted(pairs, key=lambda fork: -fork.creation_confidence)
        if state is not None:
            forks = (fork for fork in forks if state.allows_together(fork.fills))
        return list(islice(forks, max_forks))


def best_branch(confidences: Sequence[float]) -> int:
    """Index of the highest confidence; ties go to the first."""
    return max(range(len(confidences)), key=confidences.__getitem__)
