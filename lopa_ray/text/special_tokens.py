"""SpecialTokens: finds the special tokens of a tokenizer, and parts of these, in time linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import AddedToken

_SPACE = re.compile(r"\s*")


class SpecialTokens:
    """The special tokens of one tokenizer. It is never changed, so any thread may use it."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._by_text = {token.content: token for token in tokens}
        texts = self._by_text.keys()
        longest_first = sorted(texts, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        """Matches a special token, the longest that begins at a place."""
        self.prefixes = frozenset(text[:i] for text in texts for i in range(1, len(text)))
        self.suffixes = frozenset(text[i:] for text in texts for i in range(1, len(text)))
        self.infixes = frozenset(suffix[:i] for suffix in self.suffixes for i in range(1, len(suffix)))
        self._longest = max(map(len, texts), default=0)

    def begin_at_end_of(self, text: str) -> bool:
        return any(text[-n:] in self.prefixes for n in range(1, min(self._longest, len(text) + 1)))

    def end_at_beginning_of(self, text: str) -> bool:
        return any(text[:n] in self.suffixes for n in range(1, min(self._longest, len(text) + 1)))

    def split(self, text: str) -> Iterator[tuple[str, str | None]]:
        """The runs of other text, each with the special token after it, and None after the last. The white space that
        `lstrip` and `rstrip` of a token remove is part of neither."""
        end = 0
        # White space is not part of the pattern, which would try all of it again at each of its characters.
        while match := self.pattern.search(text, end):
            token, run = self._by_text[match[0]], text[end : match.start()]
            yield run.rstrip() if token.lstrip else run, token.content
            space = _SPACE.match(text, match.end()) if token.rstrip else None
            end = (space or match).end()
        yield text[end:], None
