"""Settled choices: masked positions whose choice stays the same while other tokens are filled. A model that is asked
again, with more tokens around a position, and answers the same is unlikely to answer otherwise later."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pydantic import Field

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.branching import Scores

MIN_PROBABILITY = 0.5  # a settled choice has a higher probability than all other tokens together
LEAST = 1e-4  # probabilities are kept this far from 0 and 1, where their logits have no bound


class SettledSettings(GenerationSettings):
    """The setting of decoders that fill settled choices."""

    settled: float | None = Field(default=None, gt=0.0)
    """After its own fills a step also fills masked positions whose choice is the same as in the step before, with a
    probability above 0.5 whose logit has moved by less than this, although tokens were filled in between. None: it does
    not. 0.05 is a good value."""


class SettledChoices:
    """Compares the reports of a step and of the step before."""

    def __init__(self, settings: GenerationSettings) -> None:
        self._tolerance = settings.settled if isinstance(settings, SettledSettings) else None
        self._choices: dict[int, tuple[int, float]] = {}  # position → token and logit in the last report

    def copy(self) -> SettledChoices:
        copied = object.__new__(SettledChoices)
        copied._tolerance, copied._choices = self._tolerance, self._choices
        return copied

    def positions(self, masked: Iterable[int], scores: Scores) -> list[int]:
        if self._tolerance is None or not self._choices:
            return []
        settled = []
        for position in masked:
            token, logit = self._choices.get(position, (-1, 0.0))
            score = scores[position]
            if (
                score.probability > MIN_PROBABILITY
                and score.report.tokens.item(score.row) == token
                and abs(_logit(score.probability) - logit) < self._tolerance
            ):
                settled.append(position)
        return settled

    def record(self, scores: Scores, *, filled: bool) -> None:
        """Remember a report. If nothing was filled, an unchanged next report is not evidence."""
        if self._tolerance is None:
            return
        self._choices = {
            position: (score.report.tokens.item(score.row), _logit(score.probability))
            for position, score in (scores if filled else {}).items()
        }


def _logit(probability: float) -> float:
    return math.log(max(probability, LEAST) / max(1.0 - probability, LEAST))
