"""Where two JSON values differ."""

from __future__ import annotations

import json
from typing import Any


def first_difference(before: Any, now: Any, name: str = "") -> str | None:
    """The first difference of two JSON values, in words; None if there is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            difference = first_difference(before.get(key), now.get(key), f"{name}.{key}" if name else key)
            if difference is not None:
                return difference
        return None
    return None if before == now else f"{name}: {json.dumps(before)} then, {json.dumps(now)} now"
