"""Stand-ins for the groups of a job; they are lost on demand."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cluster.batch.lines import ParsedLine, PromptLine
from cluster.jobs.group import ChunkResult, JobGroup
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CapacityError, WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure

EXIT_PROMPT = "exit every time"

EXIT_ONCE_PREFIX = "exit once: "
"""Followed by the name of a file which is made when it has exited."""


class FakeJobGroup:
    """Answers each prompt with itself, unless the prompt makes its process exit."""

    capacity = 99
    """Groups that can start at the same time."""

    def __init__(self, config: dict[str, Any], raw: bool) -> None:
        self._folder = Path(config["model"]["path"])

    def start(self) -> None:
        """Create a file in the folder of the model, one per group."""
        for index in range(self.capacity):
            with contextlib.suppress(FileExistsError):
                (self._folder / f"group {index}").touch(exist_ok=False)
                return
        raise CapacityError("no room")

    def decode(self, lines: Sequence[ParsedLine]) -> ChunkResult:
        rows = []
        for line in lines:
            assert isinstance(line, PromptLine) and isinstance(line.prompt, str)
            if line.prompt == EXIT_PROMPT:
                os._exit(1)
            if line.prompt.startswith(EXIT_ONCE_PREFIX):
                marker = Path(line.prompt.removeprefix(EXIT_ONCE_PREFIX))
                if not marker.exists():
                    marker.touch()
                    os._exit(1)
            rows.append(json.dumps({"line": line.line, "text": line.prompt}))
        return ChunkResult(tuple(rows), (), len(lines), len(lines))


class CapacityOne(FakeJobGroup):
    """Only one can start."""

    capacity = 1


class CapacityZero(FakeJobGroup):
    """None can start."""

    capacity = 0


class LostBeforeFirstStep(JobGroup):
    """Decodes in its own process. The first group ends all requests as lost ones before any of them makes a step."""

    MARKER = "lost"
    """A file in the folder of the model, which is there when a group was lost."""

    def start(self) -> None:
        """Load the model."""
        marker = Path(self._config.model.path) / self.MARKER
        engine_class = LocalEngine if marker.exists() else _LostEngine
        marker.touch()
        engine: Any = engine_class.from_config(self._config)
        self._engine = engine


class _LostEngine(LocalEngine):
    def events(self, sessions: Sequence[RequestSession]) -> Iterator[RequestEvent]:
        """A failure per session, and no step."""
        for index in range(len(sessions)):
            yield RequestFailure(index, WorkerLostError("the group was lost"))
