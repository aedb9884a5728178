"""Lookaheads that no decoder has, for comparison, and the session that decodes with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import TypeAlias

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Fork, PositionScore
from lopa_ray.decoding.decoders.lopa import LopaSession, LopaSettings
from lopa_ray.decoding.lookahead import Lookahead
from lopa_ray.decoding.session import DecodeSession

MakeLookahead: TypeAlias = Callable[[GenerationSettings, Random], Lookahead]


class RandomBranch(Lookahead):
    """The winner is drawn evenly from LoPA's branches. It does not depend on their scores, so it alone is evaluated."""

    def __init__(self, settings: GenerationSettings, random: Random) -> None:
        super().__init__(settings)
        self._random = random

    def next_branches(self, num_branches: int) -> list[Fork]:
        """One of LoPA's branches."""
        return [self._random.choice(super().next_branches(num_branches))]


class RandomPositions(Lookahead):
    """Forks lie at positions that are drawn evenly from the masked ones; the winner is found as in LoPA."""

    def __init__(self, settings: GenerationSettings, random: Random) -> None:
        super().__init__(settings)
        self._random = random

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


class BestFork(Lookahead):
    """One branch per step: LoPA's first fork, so each step adds the best-ranked token unverified."""

    def __init__(self, settings: GenerationSettings, random: Random) -> None:
        super().__init__(settings)

    def next_branches(self, num_branches: int) -> list[Fork]:
        """The first fork; the anchor where there is none."""
        return super().next_branches(num_branches)[:1]


class VariedLopaSession(LopaSession):
    """LoPA with another lookahead."""

    settings: LopaSettings

    def __init__(self, session: DecodeSession, make_lookahead: MakeLookahead, random: Random) -> None:
        """In the place of a session that has not begun, with its prompt and settings."""
        self._make_lookahead, self._random = make_lookahead, random
        super().__init__(session.prompt, session.settings, session.vocabulary, session.constraint)

    def _begin(self) -> None:
        super()._begin()
        self._lookahead = self._make_lookahead(self.settings, self._random)
