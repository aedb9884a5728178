"""From a canvas that fills in any order to text that can no longer change.

Final is what the decided prefix says: the tokens before the first mask, up to the first EOS.
Two things are held back until more is known: a character whose bytes are not all there, and
text that may turn out to be the beginning of a stop string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]
"""Token ids → text; special tokens are left out."""

BROKEN = "\ufffd"
"""What bytes that are no text decode to; at the end of a text it may only mean that some are missing."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text behind all pieces before it, and how many of the answer's tokens it completes."""

    text: str
    tokens: int


class IncrementalDetokenizer:
    """The text of one choice as it becomes final. Joined, the pieces are `text`."""

    def __init__(self, decode: Decode, mask_token_id: int, ends: Sequence[int], stop: Sequence[str]) -> None:
        """`ends`: ids that end the answer (none with `ignore_eos`); `stop`: texts that end it."""
        self._decode = decode
        self._mask = mask_token_id
        self._ends = frozenset(ends)
        self._stop = tuple(stop)
        self._tokens = 0
        """Tokens of the decided prefix that pieces have given out."""
        self.text = ""
        self.stopped = False
        """A stop string came; the text ends before it, and nothing more will be added."""

    def advance(self, canvas: Sequence[int], *, last: bool = False) -> TextPiece:
        """What is new in the canvas. With `last` nothing is held back any more.

        After a stop string, and for a canvas that says nothing new, the piece is empty.
        """
        if self.stopped:
            return TextPiece("", 0)
        prefix = self._prefix(canvas)
        whole = self._decode(prefix)
        at = self._stop_at(whole)
        if at is not None:
            self.stopped = True
            return self._give(prefix, whole[:at], self._tokens_within(prefix, at))
        sure = whole if last else self._sure(whole)
        return self._give(prefix, sure, len(prefix) if last else self._tokens_within(prefix, len(sure)))

    def decided(self, canvas: Sequence[int]) -> int:
        """Tokens that the answer has so far, up to the end of its text: a first EOS is not among them."""
        return self._tokens if self.stopped else len(self._prefix(canvas))

    def _prefix(self, canvas: Sequence[int]) -> list[int]:
        prefix = []
        for token in canvas:
            if token == self._mask or token in self._ends:
                break
            prefix.append(token)
        return prefix

    def _give(self, prefix: list[int], text: str, tokens: int) -> TextPiece:
        if not text.startswith(self.text):
            raise ValueError(
                f"the tokenizer decodes {len(prefix)} tokens to a text that does not go on from the text of fewer"
            )
        piece = TextPiece(text[len(self.text) :], max(0, tokens - self._tokens))
        self.text = text
        self._tokens = max(self._tokens, tokens)
        return piece

    def _stop_at(self, whole: str) -> int | None:
        """Where the text ends: in front of the stop string that is whole first, however many tokens came at once."""
        found = [(at + len(stop), at) for stop in self._stop if (at := whole.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _sure(self, whole: str) -> str:
        """`whole` without what may still change: a last character in parts, and the head of a stop string."""
        sure = whole.rstrip(BROKEN)
        for size in range(min(len(sure), max(map(len, self._stop), default=0)), 0, -1):
            tail = sure[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stop):
                sure = sure[:-size]
                break
        # Held back is held back: what is out stays out, even if it may begin a stop string.
        return sure if len(sure) >= len(self.text) else self.text

    def _tokens_within(self, prefix: list[int], length: int) -> int:
        """How many tokens lie wholly within the first `length` characters."""
        low, high = self._tokens, len(prefix)
        while low < high:
            middle = (low + high + 1) // 2
            if len(self._decode(prefix[:middle])) <= length:
                low = middle
            else:
                high = middle - 1
        return low
