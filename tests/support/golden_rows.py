"""Rows of recorded cases."""

from __future__ import annotations

import json
from typing import Any

from support.paths import GOLDEN

Row = dict[str, Any]


def golden_rows(name: str) -> list[Row]:
    """The rows of tests/golden/NAME.jsonl."""
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
