"""JSON values as content of inputs and questions: their limits, and the text that a model reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

MAX_LEVELS = 32  # objects and lists within each other

MAX_JSON_VALUES = 10_000  # values of all levels

MAX_JSON_BYTES = 256 * 1024  # bytes of the compact JSON in UTF-8


def json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def levels(value: Any) -> Iterator[list[Any]]:
    """A JSON value, what is in it, what is in that, and so on. A walk by recursion could fill the stack."""
    level = [value]
    while level:
        yield level
        containers = [
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)
        ]
        level = [member for container in containers for member in container]


def check_json(value: Any) -> None:
    """Raises ValueError for a value beyond the limits."""
    count = 0
    for depth, level in enumerate(levels(value)):
        if depth >= MAX_LEVELS and any(isinstance(member, dict | list) for member in level):
            raise ValueError(f"it has more than {MAX_LEVELS} levels; allowed: {MAX_LEVELS}; flatten it")
        count += len(level)
        if count > MAX_JSON_VALUES:
            raise ValueError(
                f"it has more than {MAX_JSON_VALUES} values; allowed: {MAX_JSON_VALUES}; send less"
            )
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_JSON_BYTES:
        raise ValueError(f"got {size} bytes of JSON; allowed: {MAX_JSON_BYTES}; send less")
