"""History: what a rule remembers of a request's earlier reports, by position. A step replaces it, as all of a session.

Three rules have one. A choice is settled if the model, asked again with more tokens around a position, answers the
same: it is unlikely to answer otherwise later. CreditDecoding (arXiv 2510.06133) raises the logits of tokens that were
favourites before. KLASS (arXiv 2511.05664) looks at how far the whole distribution has moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pydantic import Field

from lopa_ray.config.generation_settings import Conflict, GenerationSettings
from lopa_ray.decoding.branching import Scores
from lopa_ray.protocol.scoring import Credits

MIN_PROBABILITY = 0.5  # a settled choice has a higher probability than all other tokens together
LEAST = 1e-4  # probabilities are kept this far from 0 and 1, where their logits have no bound


class HistorySettings(GenerationSettings):
    """The settings of decoders that fill settled choices and give credit."""

    settled: float | None = Field(default=None, gt=0.0)
    """After its own fills a step also fills masked positions whose choice is the same as in the step before, with a
    probability above 0.5 whose logit has moved by less than this, although tokens were filled in between. None: it does
    not. 0.05 is a good value."""

    credit_alpha: float = Field(default=0.0, ge=0.0)
    """CreditDecoding (arXiv 2510.06133): a token's logit rises by this × ln(credit + 1), with credit for each call in
    which it was the most likely one at its position. 0: no credit. The published value is 0.7."""

    boost_gamma: float = Field(default=0.2, ge=0.0)
    """A call gives a credit of the token's probability to this power (`credit_alpha`)."""

    decay_beta: float = Field(default=0.8, ge=0.0, le=1.0)
    """Credit from before is multiplied by this in each call (`credit_alpha`)."""

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.credit_alpha and getattr(self, "lookahead", "lopa") == "verified":
            why = "a draft's scores depend on credit that earlier states earn in the same forward"
            yield "credit_alpha", f" {self.credit_alpha} with lookahead verified: {why}; use lookahead lopa"


@dataclass(frozen=True, slots=True)
class History:
    settings: GenerationSettings
    length: int = 0
    """How many divergences of a position are kept."""
    choices: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    """Position → token and logit in the last report, if the step filled anything."""
    credit: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Position → the credit of tokens, as the next call is to add to it."""
    divergences: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Position → the divergences in the last reports, oldest first."""

    @property
    def credits(self) -> Credits | None:
        """The memory of the coming step's branches; None if the settings give no credit."""
        s = self.settings
        if not isinstance(s, HistorySettings) or not s.credit_alpha:
            return None
        earned = (
            (position, token, value) for position, of in self.credit.items() for token, value in of.items()
        )
        return Credits(s.credit_alpha, s.boost_gamma, tuple(earned))

    def settled(self, masked: Iterable[int], scores: Scores) -> list[int]:
        """Those of the masked positions whose choice is settled."""
        tolerance = self._tolerance
        if tolerance is None or not self.choices:
            return []
        settled = []
        for position in masked:
            token, logit = self.choices.get(position, (-1, 0.0))
            score = scores[position]
            if (
                score.probability > MIN_PROBABILITY
                and score.report.tokens.item(score.row) == token
                and abs(_logit(score.probability) - logit) < tolerance
            ):
                settled.append(position)
        return settled

    def moved(self, position: int, scores: Scores) -> list[float]:
        """The position's divergences in the last `length` reports, that of `scores` last."""
        now = scores[position].report.memory[scores[position].row].tolist()
        return [*self.divergences.get(position, ()), *now][-self.length :]

    def after(self, scores: Scores, *, filled: bool) -> History:
        """The history after a step with these scores of masked positions. If it filled nothing, an unchanged next
        report is not evidence."""
        changed = self
        if self._tolerance is not None:
            choices = {
                position: (score.report.tokens.item(score.row), _logit(score.probability))
                for position, score in (scores if filled else {}).items()
            }
            changed = replace(changed, choices=choices)
        if self.length:
            changed = replace(changed, divergences={p: tuple(self.moved(p, scores)) for p in scores})
        if self.credits is not None:
            changed = replace(changed, credit={p: self._credit_after(p, scores) for p in scores})
        return changed

    @property
    def _tolerance(self) -> float | None:
        return self.settings.settled if isinstance(self.settings, HistorySettings) else None

    def _credit_after(self, position: int, scores: Scores) -> dict[int, float]:
        s, score = self.settings, scores[position]
        assert isinstance(s, HistorySettings)
        token, logprob = score.report.memory[score.row].tolist()
        credit = {**self.credit.get(position, {})}
        credit[int(token)] = credit.get(int(token), 0.0) + math.exp(s.boost_gamma * logprob)
        return {token: s.decay_beta * value for token, value in credit.items()}


def _logit(probability: float) -> float:
    return math.log(max(probability, LEAST) / max(1.0 - probability, LEAST))
