"""Stand-ins for the groups of a job; they decode nothing, and die on demand."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster.batch import BatchRequest, ParsedLine
from cluster.jobs.group import ChunkResult
from lopa_ray.errors import CapacityError

FATAL = "dies every time"

FATAL_ONCE = "dies once: "
"""Followed by the name of a file which says that it has."""


class FragileGroup:
    """Answers each prompt with itself, unless the prompt kills it."""

    seats = 99
    """Groups for which there is room."""

    def __init__(self, config: dict[str, Any], raw: bool) -> None:
        self._room = Path(config["model"]["path"])

    def start(self) -> None:
        """Take a seat. They are counted in the folder of the model."""
        for seat in range(self.seats):
            with contextlib.suppress(FileExistsError):
                (self._room / f"seat {seat}").touch(exist_ok=False)
                return
        raise CapacityError("no room")

    def decode(self, lines: Sequence[ParsedLine]) -> ChunkResult:
        rows = []
        for line in lines:
            assert isinstance(line, BatchRequest) and isinstance(line.prompt, str)
            if line.prompt == FATAL:
                os._exit(1)
            if line.prompt.startswith(FATAL_ONCE):
                mark = Path(line.prompt.removeprefix(FATAL_ONCE))
                if not mark.exists():
                    mark.touch()
                    os._exit(1)
            rows.append(json.dumps({"line": line.line, "text": line.prompt}))
        return ChunkResult(tuple(rows), (), len(lines), len(lines))


class OneSeat(FragileGroup):
    """Only one of them can start."""

    seats = 1


class NoSeat(FragileGroup):
    """None of them can start."""

    seats = 0
