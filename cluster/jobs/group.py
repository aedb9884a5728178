"""JobGroup: a decode group that decodes chunks. A plain class; `work_queue` makes actors of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.engine import RayEngine
from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import LineResult, ParsedLine
from lopa_ray.engine.config import Config
from lopa_ray.errors import WorkerLostError


@dataclass(frozen=True, slots=True)
class ChunkResult:
    rows: tuple[str, ...]  # a line of the output per prompt, in order
    failures: tuple[LineResult, ...]
    tokens: int
    steps: int


class JobGroup:
    """Master and workers are its children, and end with it."""

    def __init__(self, config: dict[str, Any], raw: bool) -> None:
        """`config`: the sections of a configuration, as plain values. `start` does the rest."""
        self._config = Config.parse(config)
        self._raw = raw

    def start(self) -> None:
        self._engine = RayEngine.from_config(self._config)

    def decode(self, lines: Sequence[ParsedLine]) -> ChunkResult:
        """Decode a chunk, in flight together with others that are called meanwhile. Raises WorkerLostError if the group
        is lost; then nothing of the chunk counts."""
        rows: list[str] = []
        failures: list[LineResult] = []
        tokens = steps = 0
        for output in decode_lines(self._engine, lines, raw=self._raw):
            if output.worker_lost:
                raise WorkerLostError(output.error)
            if output.error:
                failures.append(output)
            tokens += output.tokens
            steps += output.steps
            rows.append(json.dumps(output.row))
        return ChunkResult(tuple(rows), tuple(failures), tokens, steps)
