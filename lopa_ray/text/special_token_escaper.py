"""SpecialTokenEscaper: keeps special tokens out of user text while a chat template renders it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Private-use characters that replace characters of user text while a template renders it.
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)


class SpecialTokenEscaper:
    """Keeps special tokens from appearing in user text while a template renders it.

    One character of each special token in the text is replaced by a private-use character that occurs nowhere else, so
    the template can still test, strip and split the text. `unescape` restores the characters. Parts of special tokens
    are escaped too, because the template's own text may complete them: a text that begins or ends with a part of a
    token, and a value in messages or tools that is as a whole a part of a token. Special tokens that a template forms
    by changing letters, or by removing the middle of a text, are not prevented.
    """

    def __init__(self, special: Iterable[str], values: Any) -> None:
        """`special` are the special tokens. `values` is a JSON value with all texts that may appear when rendered."""
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
        """The same JSON value with all texts in it escaped, including keys."""
        if isinstance(value, str):
            return self._escape_text(value)
        if isinstance(value, Mapping):
            return {self._escape_text(key): self._escape_item(key, inner) for key, inner in value.items()}
        if isinstance(value, Sequence):
            return [self.escape(inner) for inner in value]
        return value

    def unescape(self, text: str) -> str:
        """The text with all escaped characters restored."""
        return text.translate({ord(placeholder): char for char, placeholder in self._placeholders.items()})

    def _escape_item(self, key: str, value: Any) -> Any:
        """The escaped value of a key in a message, in a tool, or in a part of these."""
        escaped = self.escape(value)
        # Templates compare the values of role and type. Both are checked elsewhere.
        if not isinstance(value, str) or key in ("role", "type"):
            return escaped
        return re.sub(
            rf"\A(\s*)({self._infix})(?=\s*\Z)",
            lambda m: m[1] + self._placeholder_of(m[2][0]) + m[2][1:],
            escaped,
        )

    def _escape_text(self, text: str) -> str:
        before = None
        while before != text:  # the rest of an escaped token may contain a shorter one
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
    """A pattern that matches the longest of `strings`. It never matches if there are none."""
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
