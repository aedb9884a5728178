"""JobGroup: a decode group that works off chunks. A plain class; `work_queue` makes actors of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from actors.engine import RayEngine
from cluster.batch import Failed, Request, as_row, run_requests
from cluster.report import Recorder
from lopa_ray.config.config import Config
from lopa_ray.errors import WorkerLostError


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of a chunk."""

    rows: tuple[str, ...]
    """A line of the output per prompt, in order."""
    failures: tuple[Failed, ...]
    tokens: int
    steps: int


class JobGroup:
    """Master and workers are its children, and end with it."""

    def __init__(self, config: dict[str, Any], raw: bool) -> None:
        """`config`: the sections of a configuration, as plain values. `start` does the rest."""
        self._config = Config.parse(config)
        self._raw = raw

    def start(self) -> None:
        """Raises what `RayEngine.from_config` raises."""
        self._engine = RayEngine.from_config(self._config)

    def decode(self, lines: Sequence[Request | Failed]) -> Decoded:
        """Decode a chunk, in flight together with others that are called meanwhile.

        Raises WorkerLostError if the group is lost; then nothing of the chunk counts.
        """
        rows: list[str] = []
        failures: list[Failed] = []
        tokens = steps = 0
        for outcome in run_requests(self._engine, lines, raw=self._raw, recorder=Recorder()):
            if isinstance(outcome, Failed):
                if outcome.lost:
                    raise WorkerLostError(outcome.error)
                failures.append(outcome)
            else:
                tokens += outcome[1].tokens
                steps += outcome[1].steps
            rows.append(json.dumps(as_row(outcome)))
        return Decoded(tuple(rows), tuple(failures), tokens, steps)
