"""Arguments of function calls as Gemma 4 writes them: `{city:<|"|>Paris<|"|>,days:[1,2],metric:true}`.

Source: Google, "Gemma 4 prompt formatting". Keys are bare. Strings stand between two tokens `<|"|>`, without
escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

QUOTE = '<|"|>'
"""The token at both ends of a string."""

_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "None": None}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
_BARE = re.compile(r"[^,:{}\[\]]*")


def write_arguments(value: Any) -> str:
    """A value of JSON as Gemma writes it. A key that could not be read without quotes has them."""
    match value:
        case str():
            return f"{QUOTE}{value}{QUOTE}"
        case Mapping():
            items = (f"{_written_key(key)}:{write_arguments(item)}" for key, item in value.items())
            return "{" + ",".join(items) + "}"
        case list() | tuple():
            return "[" + ",".join(map(write_arguments, value)) + "]"
        case _:
            return json.dumps(value)


def read_arguments(text: str) -> dict[str, Any]:
    """The object that `text` is, with any white space between its parts.

    Keys and strings may also be quoted as in JSON, and a value that is no word, number or quoted text is a string:
    models write both. Raises ValueError for any other text, and RecursionError for one that is nested too deeply.
    """
    reader = _Reader(text)
    value = reader.value()
    if not isinstance(value, dict) or reader.next():
        raise ValueError(f"no object of arguments: {text!r}")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def next(self) -> str:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1
        return self._text[self._at : self._at + 1]

    def value(self) -> Any:
        match self.next():
            case "{":
                return dict(self._items("}"))
            case "[":
                return self._items("]")
            case _:
                quoted = self._quoted()
                return _bare_value(self._bare()) if quoted is None else quoted

    def _items(self, closing: str) -> list[Any]:
        """The items between brackets; of an object, pairs of key and value."""
        self._at += 1
        items: list[Any] = []
        while self.next() != closing:
            if items:
                self._take(",")
            items.append(self._pair() if closing == "}" else self.value())
        self._take(closing)
        return items

    def _pair(self) -> tuple[str, Any]:
        self.next()
        quoted = self._quoted()
        key = self._bare() if quoted is None else quoted
        self._take(":")
        return key, self.value()

    def _quoted(self) -> str | None:
        if self._text.startswith(QUOTE, self._at):
            start = self._at + len(QUOTE)
            end = self._text.index(QUOTE, start)
            self._at = end + len(QUOTE)
            return self._text[start:end]
        if self._text.startswith('"', self._at):
            string, self._at = json.JSONDecoder().raw_decode(self._text, self._at)
            return str(string)
        return None

    def _bare(self) -> str:
        match = _BARE.match(self._text, self._at)
        text = match[0].rstrip() if match else ""
        if not text:
            raise ValueError(f"a key or a value is missing at character {self._at}")
        self._at += len(text)
        return text

    def _take(self, character: str) -> None:
        if self.next() != character:
            raise ValueError(f"{character!r} is missing at character {self._at}")
        self._at += 1


def _written_key(key: str) -> str:
    is_bare = key == key.strip() != "" and _BARE.fullmatch(key) and not key.startswith((QUOTE, '"'))
    return key if is_bare else write_arguments(key)


def _bare_value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    return json.loads(text) if _NUMBER.fullmatch(text) else text
