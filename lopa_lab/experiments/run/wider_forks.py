"""Lookaheads whose forks differ from LoPA's: forks of forks, distant positions, second-best tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import combinations
from math import exp
from random import Random

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Fork, PositionScore
from lopa_ray.decoding.lookahead import Lookahead
from lopa_ray.protocol.outcome import Decision

POOL = 3
"""Distant forks are picked from this many times as many positions, the best-ranked ones."""

SECOND_SHARE = 3
"""One fork in this many has a second-best token."""


class WiderLookahead(Lookahead, ABC):
    """As many forks as LoPA has, which `choose` makes of the scores of all masked positions."""

    def __init__(self, settings: GenerationSettings, random: Random) -> None:
        super().__init__(settings)

    def update_forks(
        self,
        masked: Iterable[int],
        scores: dict[int, PositionScore],
        constraint_state: ConstraintState | None,
    ) -> None:
        """As many forks as LoPA has. Constraints are not supported: none of the problems has one."""
        count = self._settings.branch_limit - (self._settings.anchor != "omit")
        ranked = sorted(masked, key=lambda position: -scores[position].score)
        self._forks = self.choose([scores[position] for position in ranked], count)

    @abstractmethod
    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """At most `count` forks from the scores of the masked positions, best first."""


def fork_of(*scores: PositionScore) -> Fork:
    """The fork that fills these positions with their chosen tokens; its creation confidence is the mean score."""
    return Fork(tuple(each.decision for each in scores), sum(each.score for each in scores) / len(scores))


class ForksOfForks(WiderLookahead):
    """Half of the forks add one token, the others add a second one to the best of these."""

    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """Two-token forks first, so that ties go to them."""
        single = ranked[: (count + 1) // 2]
        pairs = list(combinations(ranked[: len(single) + 1], 2))[: count - len(single)]
        return [*(fork_of(*pair) for pair in pairs), *(fork_of(each) for each in single)]


class DistantForks(WiderLookahead):
    """Forks at positions that are far apart from each other, among the better-ranked ones."""

    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """The best-ranked position, then each time the one that lies farthest from all chosen ones; ties by rank."""
        pool, chosen = list(ranked[: POOL * count]), list[PositionScore]()

        def distance(candidate: PositionScore) -> int:
            where = candidate.decision.position
            return min((abs(where - each.decision.position) for each in chosen), default=0)

        while pool and len(chosen) < count:
            chosen.append(max(pool, key=distance))
            pool.remove(chosen[-1])
        return [fork_of(each) for each in chosen]


class SecondTokens(WiderLookahead):
    """One fork in three adds the second-best token of a position, where that is the most likely to be right.

    Needs `top_logprobs: 2`.
    """

    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """LoPA's best forks, then the second-best tokens."""
        num_second = count // SECOND_SHARE
        unsure = sorted(ranked, key=lambda each: -each.decision.top_logprobs[1][1])
        second = [fork for each in unsure[:num_second] if (fork := _second(each.decision)) is not None]
        return [*(fork_of(each) for each in ranked[: count - len(second)]), *second]


def _second(best: Decision) -> Fork | None:
    """The fork with the second-best token of a position; None if the chosen one is not the best."""
    (first, _), (token, logprob) = best.top_logprobs[:2]
    if first != best.token:
        return None
    probability = exp(logprob)
    return Fork((Decision(best.position, token, probability, logprob, best.top_logprobs),), probability)
