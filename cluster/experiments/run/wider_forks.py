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

DISTANCE = 6
"""Positions that lie at least this far apart count as distant."""

SECOND_SHARE = 3
"""One fork in this many has a second-best token."""


class WiderLookahead(Lookahead, ABC):
    """LoPA's forks are made first, from twice as many positions; `choose` makes others of them."""

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
    """Half of the forks add one token, the others add the next-ranked one to such a fork."""

    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """Two-token forks first, so that ties go to them."""
        single = ranked[: (count + 1) // 2]
        pairs = list(combinations(ranked[: len(single) + 1], 2))[: count - len(single)]
        return [*(fork_of(*pair) for pair in pairs), *(fork_of(each) for each in single)]


class DistantForks(WiderLookahead):
    """Forks at the best-ranked positions that are far apart from each other."""

    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """Distant positions by rank, then the others by rank."""
        chosen: list[PositionScore] = []
        for each in ranked:
            where = each.decision.position
            if all(abs(where - other.decision.position) >= DISTANCE for other in chosen):
                chosen.append(each)
        others = [each for each in ranked if each not in chosen]
        return [fork_of(each) for each in [*chosen, *others][:count]]


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
