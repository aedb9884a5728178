"""SpecialTokenEscaper: keeps special tokens out of user text while a chat template renders it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lopa_ray.text.special_tokens import SpecialTokens

# Private-use characters that replace characters of user text while a template renders it.
_PLACEHOLDERS = range(0xF0000, 0xFFFFE)


class SpecialTokenEscaper:
    """One character of each special token is replaced by a private-use character that occurs nowhere else, so the
    template can still test, strip and split the text. Parts of special tokens at the ends of a text, and values that
    are as a whole a part of a token, are escaped too, because the template's own text may complete them. Tokens that a
    template forms by changing letters, or by removing the middle of a text, are not prevented."""

    def __init__(self, special: SpecialTokens, values: Any) -> None:
        """`values` is a JSON value with all texts that may appear when rendered."""
        self._special = special
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
        return text.translate({ord(placeholder): char for char, placeholder in self._placeholders.items()})

    def _escape_item(self, key: str, value: Any) -> Any:
        escaped = self.escape(value)
        # Templates compare the values of role and type. Both are checked elsewhere.
        if not isinstance(value, str) or key in ("role", "type"):
            return escaped
        body = escaped.strip()
        if not body:
            return self._hide(escaped, self._special.infixes)
        return escaped.replace(body, self._hide_first(body)) if body in self._special.infixes else escaped

    def _escape_text(self, text: str) -> str:
        special, before = self._special, None
        while before != text:  # the rest of an escaped token may contain a shorter one
            before, text = text, special.pattern.sub(lambda m: self._hide_first(m[0]), text)
        # Templates strip white space. Where that is itself a part of a token, no other way is left than to keep it.
        rest = text.lstrip()
        space = self._hide(text[: len(text) - len(rest)], special.suffixes)
        text = space + (self._hide_first(rest) if special.end_at_beginning_of(rest) else rest)
        rest = text.rstrip()
        space = self._hide(text[len(rest) :], special.prefixes)
        if special.begin_at_end_of(rest):
            rest = rest[:-1] + self._placeholder_of(rest[-1])
        return rest + space

    def _hide(self, text: str, chars: frozenset[str]) -> str:
        for char in chars.intersection(text):
            text = text.replace(char, self._placeholder_of(char))
        return text

    def _hide_first(self, text: str) -> str:
        return self._placeholder_of(text[0]) + text[1:]

    def _placeholder_of(self, char: str) -> str:
        if char not in self._placeholders:
            self._placeholders[char] = next(self._unused)
        return self._placeholders[char]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (key, *_texts(inner))
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)
