"""SpecialTokenEscaper: keeps special tokens out of what a user writes while a chat template renders it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Private-use characters that replace characters of user text while a template renders it.
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)


class SpecialTokenEscaper:
    """Keeps special tokens from appearing in user text while a template renders it.

    One character of each is swapped for a private-use character that nothing else uses, so the
    template can still test, strip and split the text; `unescape` swaps them back. A text that begins
    or ends within a special token is escaped too, since the template's own text may complete it, and in
    messages and tools one that is a part of a special token as a whole. What a template makes by changing
    letters in a text, or by taking parts out of its middle, is beyond this.
    """

    def __init__(self, special: Iterable[str], values: Any) -> None:
        """`values`: the JSON value of all texts that may appear in what is rendered."""
        tokens = tuple(special)
        prefixes = {token[:i] for token in tokens for i in range(1, len(token))}
        suffixes = {token[i:] for token in tokens for i in range(1, len(token))}
        infixes = {suffix[:i] for suffix in suffixes for i in range(1, len(suffix))}
        self._token, self._prefix, self._suffix, self._infix = (
            _alternation(strings) for strings in (tokens, prefixes, suffixes, infixes)
        )
        used = set("".join(_texts(values)))
        self._unused = (chr(code) for code in _PLACEHOLDERS if chr(code) not in used)
        self._placeholders: dict[str, str] = {}

    def escape(self, value: Any) -> Any:
        """The same JSON value with all its texts escaped, keys too."""
        if isinstance(value, str):
            return self._escape_text(value)
        if isinstance(value, Mapping):
            return {self._escape_text(key): self._escape_item(key, inner) for key, inner in value.items()}
        if isinstance(value, Sequence):
            return [self.escape(inner) for inner in value]
        return value

    def unescape(self, text: str) -> str:
        """Text with escaped parts, as it was before."""
        return text.translate({ord(placeholder): char for char, placeholder in self._placeholders.items()})

    def _escape_item(self, key: str, value: Any) -> Any:
        """What a message, a tool or a part of one has under a key."""
        escaped = self.escape(value)
        if not isinstance(value, str) or key in (
            "role",
            "type",
        ):  # templates compare these, and both are checked
            return escaped
        return re.sub(
            rf"\A(\s*)({self._infix})(?=\s*\Z)",
            lambda m: m[1] + self._placeholder_of(m[2][0]) + m[2][1:],
            escaped,
        )

    def _escape_text(self, text: str) -> str:
        before = None
        while before != text:  # what is left of one token may hold a shorter one
            before, text = text, re.sub(self._token, lambda m: self._placeholder_of(m[0][0]) + m[0][1:], text)
        text = re.sub(
            rf"\A(\s*)({self._suffix})", lambda m: m[1] + self._placeholder_of(m[2][0]) + m[2][1:], text
        )
        return re.sub(
            rf"({self._prefix})(\s*)\Z", lambda m: m[1][:-1] + self._placeholder_of(m[1][-1]) + m[2], text
        )

    def _placeholder_of(self, char: str) -> str:
        if char not in self._placeholders:
            self._placeholders[char] = next(self._unused)
        return self._placeholders[char]


def _alternation(strings: Iterable[str]) -> str:
    """A pattern that matches the longest of `strings`; one that never matches if there are none."""
    ordered = sorted(strings, key=lambda string: (-len(string), string))
    return "|".join(map(re.escape, ordered)) or r"(?!)"


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (key, *_texts(inner))
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)
