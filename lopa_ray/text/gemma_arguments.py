"""Arguments of function calls as Gemma 4 writes them: `{city:<|"|>Paris<|"|>,days:[1,2],metric:true}`.

Source: Google, "Gemma 4 prompt formatting". Keys are bare. Strings stand between two tokens `<|"|>`, without escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

QUOTE = '<|"|>'  # the token at both ends of a string

_WORDS = {"true": "true", "false": "false", "null": "null", "None": "null"}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")
_BARE = re.compile(r"[^,:{}\[\]]*")
_TOKEN = re.compile(
    rf"""\s*(?:{re.escape(QUOTE)}(?P<text>.*?){re.escape(QUOTE)}|(?P<json>"(?:[^"\\]|\\.)*")"""
    r"|(?P<mark>[{}\[\]:,])|(?P<bare>[^,:{}\[\]]+))",
    re.DOTALL,
)


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
    """The object that `text` is, with any white space between its parts. Keys and strings may also be quoted as in
    JSON, and a value that is not a word, number or quoted text is a string: models write both. Raises ValueError for
    any other text, and RecursionError for text that is nested too deeply."""
    value = json.loads("".join(_as_json(match) for match in _TOKEN.finditer(text)))
    if not isinstance(value, dict):
        raise ValueError(f"no object of arguments: {text!r}")
    return value


def _as_json(token: re.Match[str]) -> str:
    if token["text"] is not None:
        return json.dumps(token["text"])
    bare = (token["bare"] or "").strip()
    if not bare:
        return token["json"] or token["mark"] or ""
    if bare.startswith((QUOTE, '"')):
        raise ValueError(f"a string has no end: {bare!r}")
    is_key = token.string.startswith(":", token.end())
    if not is_key and (bare in _WORDS or _NUMBER.fullmatch(bare)):
        return _WORDS.get(bare, bare)
    return json.dumps(bare)


def _written_key(key: str) -> str:
    is_bare = key == key.strip() != "" and _BARE.fullmatch(key) and not key.startswith((QUOTE, '"'))
    return key if is_bare else write_arguments(key)
