"""PromptLookup: what followed the last tokens where they stood before, in the prompt or in the answer.

Published as prompt lookup decoding, and in vLLM as n-gram speculation. It costs no forward, and its guesses know the
last token, which masks of the forward that decided it did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

RIGHT = {2: 0.5, 3: 0.6, 4: 0.6, 5: 0.9}
"""Matching tokens → how often the next one is the same again, as in greedy answers of SmolLM2-135M."""

CONTINUED = 0.93  # how often a later token is if all before it are

LONGEST, SHORTEST = max(RIGHT), min(RIGHT)


class PromptLookup:
    def __init__(self) -> None:
        self._read = 0  # positions that the index has
        # Tokens in a row → the position after their latest occurrence.
        self._next: dict[tuple[int, ...], int] = {}

    def __reduce__(self) -> tuple[type[PromptLookup], tuple[Any, ...]]:
        """Without its index, which the next call makes anew."""
        return PromptLookup, ()

    def continuation(self, ids: Sequence[int], most: int) -> list[tuple[int, float]]:
        """At most `most` tokens that may follow `ids`, each with its probability if all before it are right; none if
        the last tokens are new. `ids` begin with those of the call before."""
        end = len(ids)
        for stop in range(max(self._read, 1), end):  # what ends at the last token is followed by nothing yet
            for count in range(SHORTEST, min(LONGEST, stop) + 1):
                self._next[tuple(ids[stop - count : stop])] = stop
        self._read = end
        for count in range(min(LONGEST, end), SHORTEST - 1, -1):
            at = self._next.get(tuple(ids[end - count :]))
            if at is not None:
                return [
                    (token, CONTINUED if later else RIGHT[count])
                    for later, token in enumerate(ids[at : at + most])
                ]
        return []
