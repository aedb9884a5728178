"""Lookaheads with other forks, which no decoder has, for comparison, and the session that decodes with one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import exp
from random import Random
from typing import TypeAlias

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import ANCHOR, Fork, PositionScore
from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.decoding.lookahead import Lookahead
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import Decision

MakeLookahead: TypeAlias = Callable[[GenerationSettings, Random], Lookahead]

MakeSession: TypeAlias = Callable[[DecodeSession, int], DecodeSession]
"""A session and the index of its problem → the session that is decoded in its place."""

POOL = 3
"""Distant forks are picked from this many times as many best-ranked positions."""

SECOND_SHARE = 3
"""One fork in this many has a second-best token."""


class Variation(Lookahead):
    """A lookahead of one request, with a source of random numbers."""

    def __init__(self, settings: GenerationSettings, random: Random) -> None:
        super().__init__(settings)
        self._random = random


class RandomBranch(Variation):
    """The winner is drawn evenly from LoPA's branches. It does not depend on their scores, so it alone is evaluated."""

    def next_branches(self, num_branches: int) -> list[Fork]:
        """One of LoPA's branches."""
        return [self._random.choice(super().next_branches(num_branches))]


class RandomPositions(Variation):
    """Forks lie at masked positions that are drawn evenly; the winner is found as in LoPA."""

    def update_forks(
        self,
        masked: Iterable[int],
        scores: dict[int, PositionScore],
        constraint_state: ConstraintState | None,
    ) -> None:
        """As many forks as LoPA has."""
        positions = list(masked)
        count = min(len(positions), self._settings.branch_limit - 1)
        super().update_forks(sorted(self._random.sample(positions, count)), scores, constraint_state)


class BestFork(Variation):
    """One branch per step: LoPA's first fork, so each step adds the best-ranked token unverified."""

    def next_branches(self, num_branches: int) -> list[Fork]:
        """The first fork; the anchor where there is none."""
        return super().next_branches(num_branches)[:1]


class WithoutAnchor(Variation):
    """Forks alone compete, one more than LoPA has; the anchor is there where there is no fork."""

    def next_branches(self, num_branches: int) -> list[Fork]:
        """The forks."""
        return super().next_branches(num_branches + 1)[:-1] or [ANCHOR]

    def update_forks(
        self,
        masked: Iterable[int],
        scores: dict[int, PositionScore],
        constraint_state: ConstraintState | None,
    ) -> None:
        """One fork more than LoPA has."""
        self._forks = self._best_forks(masked, scores, constraint_state, self._settings.branch_limit)


class EarlyExit(Variation):
    """A step has the anchor alone when every candidate's probability exceeds a bound."""

    def __init__(self, settings: GenerationSettings, random: Random, below: float) -> None:
        super().__init__(settings, random)
        self._below = below

    def update_forks(
        self,
        masked: Iterable[int],
        scores: dict[int, PositionScore],
        constraint_state: ConstraintState | None,
    ) -> None:
        """LoPA's forks, or none."""
        super().update_forks(masked, scores, constraint_state)
        added = (decision for fork in self._forks for decision in fork.decisions)
        if all(decision.probability > self._below for decision in added):
            self._forks = []


class VariedLopaSession(LopaSession):
    """LoPA with another lookahead."""

    settings: LopaSettings

    def __init__(self, session: DecodeSession, make_lookahead: MakeLookahead, random: Random) -> None:
        """Take the place of a session that has not begun, with its prompt and settings."""
        self._make_lookahead, self._random = make_lookahead, random
        super().__init__(session.prompt, session.settings, session.vocabulary, session.constraint)

    def _begin(self) -> None:
        super()._begin()
        self._lookahead = self._make_lookahead(self.settings, self._random)


class WiderLookahead(Variation, ABC):
    """As many forks as LoPA has, which `choose` makes of the scores of all masked positions."""

    def update_forks(
        self,
        masked: Iterable[int],
        scores: dict[int, PositionScore],
        constraint_state: ConstraintState | None,
    ) -> None:
        """As many forks as LoPA has. Constraints are not supported: none of the problems has one."""
        count = self._settings.branch_limit - 1
        ranked = sorted(masked, key=lambda position: -scores[position].score)
        self._forks = self.choose([scores[position] for position in ranked], count)

    @abstractmethod
    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """At most `count` forks from the scores of the masked positions, best first."""


class ForksOfForks(WiderLookahead):
    """Half of the forks add one token, the others add a second token to the best of these."""

    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """Two-token forks first, so that ties go to them."""
        single = ranked[: (count + 1) // 2]
        pairs = list(combinations(ranked[: len(single) + 1], 2))[: count - len(single)]
        return [*(Fork.of(*pair) for pair in pairs), *(Fork.of(score) for score in single)]


class DistantForks(WiderLookahead):
    """Forks at better-ranked positions that are far apart from each other."""

    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """The best-ranked position, then each time the position farthest from all chosen positions; ties by rank."""
        pool, chosen = list(ranked[: POOL * count]), list[PositionScore]()

        def distance(candidate: PositionScore) -> int:
            where = candidate.decision.position
            return min((abs(where - score.decision.position) for score in chosen), default=0)

        while pool and len(chosen) < count:
            chosen.append(max(pool, key=distance))
            pool.remove(chosen[-1])
        return [Fork.of(score) for score in chosen]


class SecondTokens(WiderLookahead):
    """One fork in three adds the second-best token of a position, where that is the most likely to be right.

    Needs `top_logprobs: 2`.
    """

    def choose(self, ranked: Sequence[PositionScore], count: int) -> list[Fork]:
        """LoPA's best forks, then the second-best tokens."""
        num_second = count // SECOND_SHARE
        unsure = sorted(ranked, key=lambda score: -score.decision.top_logprobs[1][1])
        second = [fork for score in unsure[:num_second] if (fork := _second(score.decision)) is not None]
        return [*(Fork.of(score) for score in ranked[: count - len(second)]), *second]


def _second(best: Decision) -> Fork | None:
    """The fork with the second-best token of a position; None if the chosen one is not the best."""
    (first, _), (token, logprob) = best.top_logprobs[:2]
    if first != best.token:
        return None
    probability = exp(logprob)
    return Fork((Decision(best.position, token, probability, logprob, best.top_logprobs),), probability)


def varied_by(make_lookahead: MakeLookahead | None, *seed: object) -> MakeSession:
    """Puts LoPA with another lookahead in the place of a session, with draws by the index of its problem and `seed`.

    None leaves the session as it is.
    """
    if make_lookahead is None:
        return lambda session, index: session
    first, *rest = seed
    return lambda session, index: VariedLopaSession(
        session, make_lookahead, Random(" ".join(map(str, (first, index, *rest))))
    )
