"""JSON values as content of inputs and questions: their limits, and the text that a model reads."""

from __future__ import annotations

import json
from typing import Any

MAX_LEVELS = 32
"""Objects and lists within each other."""

MAX_JSON_VALUES = 10_000
"""Values of all levels."""

MAX_JSON_BYTES = 256 * 1024
"""Bytes of the compact JSON in UTF-8."""


def json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def check_json(value: Any) -> None:
    """Raises ValueError for a value beyond the limits."""
    level, count, depth = [value], 1, 0
    while level:
        containers = [member for member in level if isinstance(member, dict | list)]
        depth += bool(containers)
        if depth > MAX_LEVELS:
            raise ValueError(f"it has more than {MAX_LEVELS} levels; allowed: {MAX_LEVELS}; flatten it")
        level = [
            member
            for container in containers
            for member in (container.values() if isinstance(container, dict) else container)
        ]
        count += len(level)
        if count > MAX_JSON_VALUES:
            raise ValueError(
                f"it has more than {MAX_JSON_VALUES} values; allowed: {MAX_JSON_VALUES}; send less"
            )
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    if size > MAX_JSON_BYTES:
        raise ValueError(f"got {size} bytes of JSON; allowed: {MAX_JSON_BYTES}; send less")
