"""Results and traces as JSON, and as the figures under an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.result import GenerationResult, TraceStep


def as_json(result: GenerationResult, settings: GenerationSettings) -> dict[str, Any]:
    """A result as plain values."""
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "tokens": result.tokens,
        "prompt_tokens": result.prompt_tokens,
        "steps": result.steps,
        "forwards": result.forwards,
        "tpf": round(result.tpf, 4),
        "tps": round(result.tps, 2),
        "seconds": round(result.seconds, 4),
        "decoder": settings.decoder,
        "num_branches": settings.num_branches if isinstance(settings, LookaheadSettings) else 1,
    }


def winners_strip(winners: Sequence[str]) -> str:
    """The branch that won each step, in one line; repeats are counted."""
    runs = [(name, len(list(run))) for name, run in groupby(winners)]
    return " ".join(name if count == 1 else f"{name}×{count}" for name, count in runs)


def figures(result: GenerationResult, winners: Sequence[str]) -> Table:
    """The small table under an answer."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("tokens", f"{result.tokens}")
    table.add_row("steps", f"{result.steps}")
    table.add_row("TPF", f"{result.tpf:.2f}", style="bold")
    table.add_row("tokens/s", f"{result.tps:.1f}")
    table.add_row("forwards", f"{result.forwards}")
    table.add_row("finish reason", result.finish_reason)
    if any(name != "anchor" for name in winners) or result.forwards > result.steps:
        table.add_row("winners", Text(winners_strip(winners)))
    return table


OnStep = Callable[[int, TraceStep], None]


class Recorder:
    """Listens to the steps of requests: notes who won, and writes the trace if one is wanted."""

    def __init__(self, trace: Path | None = None) -> None:
        self.winners: list[str] = []
        self._file: TextIO | None = None if trace is None else trace.open("w", encoding="utf-8")

    def on_step(self, lines: Sequence[int] | None = None) -> OnStep:
        """A listener; `lines` says which line of the input each request stands on."""

        def listen(index: int, step: TraceStep) -> None:
            self.winners.append(step.branch_name(step.winner))
            if self._file is not None:
                line = {} if lines is None else {"line": lines[index]}
                self._file.write(json.dumps({**line, **asdict(step)}) + "\n")

        return listen

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
