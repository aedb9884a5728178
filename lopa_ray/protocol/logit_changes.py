"""LogitChanges: penalties and biases of a request, and the tokens that they count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids as they travel in a plan."""
    return np.fromiter(ids, np.int32).tobytes()


@dataclass(frozen=True, slots=True)
class LogitChanges:
    """Changes of the logits of a plan's scored positions, before anything else is made of them.

    Of a token that is counted c times in a branch's answer, in this order (vLLM's):

    1. logit + bias;
    2. where the token is in the prompt or c > 0: logit ÷ repetition_penalty if the logit is positive, logit ×
       repetition_penalty if not (arXiv 1909.05858);
    3. logit - frequency_penalty × c - presence_penalty × (c > 0).

    The branch's answer is what the plan's canvas has decided of it, at any position (`answer`), and the branch's fills,
    which the runner counts.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    biased: bytes = b""  # int32: the tokens that have a bias, each once
    biases: bytes = b""  # fp64: the bias of each of them
    prompt: bytes = b""  # int32: counted tokens of the prompt, each once; empty without a repetition penalty
    answer: bytes = b""  # int32: counted tokens of the canvas, with repeats; empty without penalties
    uncounted_ids: tuple[int, ...] = ()
    """Tokens that no penalty counts: the mask token, and tokens that end an answer."""

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    @property
    def biased_ids(self) -> TokenIds:
        return np.frombuffer(self.biased, np.int32)

    @property
    def bias_values(self) -> npt.NDArray[np.float64]:
        """See `biases`."""
        return np.frombuffer(self.biases, np.float64)

    @property
    def prompt_ids(self) -> TokenIds:
        return np.frombuffer(self.prompt, np.int32)

    @property
    def answer_ids(self) -> TokenIds:
        return np.frombuffer(self.answer, np.int32)

    def with_answer(self, ids: Iterable[int]) -> Self:
        """The same for a canvas on which the answer stands as `ids`, masks included."""
        if not self.has_penalties:
            return self
        answer = np.fromiter(ids, np.int32)
        return replace(self, answer=answer[~np.isin(answer, self.uncounted_ids)].tobytes())
