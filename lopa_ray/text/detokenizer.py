"""Incremental detokenization: emits the text of the decided prefix of a canvas. Incomplete UTF-8 and possible prefixes
of stop strings are held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Decode = Callable[[Sequence[int]], str]  # token ids → text; special tokens are left out

REPLACEMENT_CHARACTER = "\ufffd"
"""The result of bytes that are not text; at the end of a text it may only mean that some bytes are missing."""


@dataclass(frozen=True, slots=True)
class DetokenizedText:
    """Text after all that was returned before it, and how many of the answer's tokens it completes."""

    text: str
    tokens: int


class IncrementalDetokenizer:
    """The text of one choice as it becomes final. What `update` returns, joined, is `text`."""

    def __init__(
        self, decode: Decode, mask_token_id: int, end_token_ids: Sequence[int], stop_strings: Sequence[str]
    ) -> None:
        """`end_token_ids` end the answer (see `DecodeSession.end_token_ids`), as `stop_strings` do."""
        self._decode = decode
        self._mask_token_id = mask_token_id
        self._end_token_ids = frozenset(end_token_ids)
        self._stop_strings = tuple(stop_strings)
        self.num_emitted_tokens = 0  # tokens of the decided prefix whose text was returned
        self.text = ""
        self.stopped = False
        """A stop string came; the text ends before it, and nothing more will be added."""

    def update(self, canvas: Sequence[int], *, final: bool = False) -> DetokenizedText:
        """The new text in the canvas: none after a stop string. With `final` nothing is held back any more."""
        if self.stopped:
            return DetokenizedText("", 0)
        prefix = self._decided_prefix(canvas)
        text = self._decode(prefix)
        stop_offset = self._stop_offset(text)
        if stop_offset is not None:
            self.stopped = True
            return self._emit(prefix, text[:stop_offset], self._tokens_within(prefix, stop_offset))
        stable = text if final else self._stable_text(text)
        return self._emit(prefix, stable, len(prefix) if final else self._tokens_within(prefix, len(stable)))

    def num_text_tokens(self, canvas: Sequence[int]) -> int:
        """Tokens that the answer has so far, up to the end of its text: a first EOS is not among them."""
        return self.num_emitted_tokens if self.stopped else len(self._decided_prefix(canvas))

    def _decided_prefix(self, canvas: Sequence[int]) -> list[int]:
        prefix = []
        for token in canvas:
            if token == self._mask_token_id or token in self._end_token_ids:
                break
            prefix.append(token)
        return prefix

    def _emit(self, prefix: list[int], text: str, tokens: int) -> DetokenizedText:
        if not text.startswith(self.text):
            raise ValueError(
                f"the tokenizer decodes {len(prefix)} tokens to a text that does not extend the text of fewer tokens"
            )
        new = DetokenizedText(text[len(self.text) :], max(0, tokens - self.num_emitted_tokens))
        self.text = text
        self.num_emitted_tokens = max(self.num_emitted_tokens, tokens)
        return new

    def _stop_offset(self, text: str) -> int | None:
        """The text's end: before the stop string that is complete first, however many tokens came at once."""
        complete = [(at + len(stop), at) for stop in self._stop_strings if (at := text.find(stop)) >= 0]
        return min(complete)[1] if complete else None

    def _stable_text(self, text: str) -> str:
        """`text` without what may still change: a last character in parts, and the head of a stop string."""
        stable = text.rstrip(REPLACEMENT_CHARACTER)
        for size in range(min(len(stable), max(map(len, self._stop_strings), default=0)), 0, -1):
            tail = stable[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stop_strings):
                stable = stable[:-size]
                break
        # Text that was returned before stays, even if it may begin a stop string.
        return stable if len(stable) >= len(self.text) else self.text

    def _tokens_within(self, prefix: list[int], length: int) -> int:
        low, high = self.num_emitted_tokens, len(prefix)
        while low < high:
            middle = (low + high + 1) // 2
            if len(self._decode(prefix[:middle])) <= length:
                low = middle
            else:
                high = middle - 1
        return low
