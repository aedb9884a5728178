"""QuestionTokens: a question, and its slot, the masked positions after it that answer it.

The slot is as long as the longest value; a token that ends answers closes shorter values. A value's log-likelihood is Σ
over its tokens log p(token | the value's earlier tokens filled in, the rest of the slot masked). All prefixes are known
beforehand, so one step evaluates them all. A diffusion model's own marginals need not agree with this factorisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lopa_ray.errors import PromptError


@dataclass(frozen=True, slots=True)
class QuestionTokens:
    asked: tuple[int, ...]  # the tokens between the input and the slot, at least one
    values: tuple[tuple[int, ...], ...]  # each value as it stands in the slot

    @classmethod
    def of(cls, asked: Sequence[int], values: Sequence[Sequence[int]], end_token_id: int) -> QuestionTokens:
        """Raises PromptError for no value, an empty one, or two alike."""
        if not values or not all(values):
            needed = "values, and each of them at least one token"
            raise PromptError(f"a question needs {needed}; add what is missing")
        length = max(map(len, values))
        closed = tuple((*value, end_token_id)[:length] for value in values)
        if len(set(closed)) < len(closed):
            raise PromptError("two values of a question have the same tokens; change one of them")
        return cls(tuple(asked), closed)

    @property
    def slot_length(self) -> int:
        return max(map(len, self.values))

    @property
    def length(self) -> int:
        return len(self.asked) + self.slot_length

    @property
    def candidates_by_prefix(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Each distinct prefix of the values, in order of the values → the tokens that follow it in one of them."""
        following: dict[tuple[int, ...], dict[int, None]] = {}
        for value in self.values:
            for at, token in enumerate(value):
                following.setdefault(value[:at], {})[token] = None
        return {prefix: tuple(tokens) for prefix, tokens in following.items()}

    def log_likelihoods(self, logprobs: Sequence[Sequence[float]]) -> list[float]:
        """The log-likelihood of each value in nats, by the log-probabilities of each prefix' candidates, in order."""
        pairs = zip(self.candidates_by_prefix.items(), logprobs, strict=True)
        by_prefix = {prefix: dict(zip(tokens, found, strict=True)) for (prefix, tokens), found in pairs}
        return [sum(by_prefix[value[:at]][token] for at, token in enumerate(value)) for value in self.values]
