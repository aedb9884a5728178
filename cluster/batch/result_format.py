"""Results and traces as JSON, and the table of statistics under an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.execution.number_format import number_format

if TYPE_CHECKING:
    from lopa_ray.engine.base import OnStep


def result_as_dict(result: GenerationResult, settings: GenerationSettings) -> dict[str, Any]:
    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "tokens": result.tokens,
        "prompt_tokens": result.prompt_tokens,
        "steps": result.steps,
        "forwards": result.forwards,
        "rule_steps": result.rule_steps,
        "tpf": round(result.tpf, 4),
        "tps": round(result.tps, 2),
        "seconds": round(result.seconds, 4),
        "decoder": settings.decoder,
        "num_branches": settings.num_branches if isinstance(settings, LookaheadSettings) else 1,
        **({} if result.trajectory is None else {"trajectory": asdict(result.trajectory)}),
    }


def stats_table(
    result: GenerationResult, recorder: StepRecorder, model: ModelSettings, num_workers: int
) -> Table:
    """The small table under an answer, whose steps `recorder` has. `model` and `num_workers`: as the
    engine has them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("tokens", f"{result.tokens}")
    table.add_row("steps", f"{result.steps}")
    table.add_row("TPF", f"{result.tpf:.2f}", style="bold")
    table.add_row("tokens/s", f"{result.tps:.1f}")
    table.add_row("forwards", f"{result.forwards}")
    table.add_row("finish reason", result.finish_reason)
    table.add_row("dtype", number_format(model, num_workers))
    if result.mean_depth > 1:
        table.add_row("depth", f"{result.mean_depth:.2f} denoising steps per step")
    if recorder.accepted:
        table.add_row("drafts", f"{recorder.accepted} of {result.forwards - result.steps} accepted")
    elif result.forwards > result.steps:
        table.add_row("lookahead", f"won {recorder.lookahead_wins} of {result.steps} steps")
    return table


class StepRecorder:
    """Counts accepted drafts and steps that lookahead won, and writes a trace as JSON lines if a file is given."""

    def __init__(self, trace: Path | None = None) -> None:
        self.lookahead_wins = 0
        self.accepted = 0
        self._file: TextIO | None = None if trace is None else trace.open("w", encoding="utf-8")

    def listener(self, lines: Sequence[int] | None = None) -> OnStep:
        """A callback for `Engine.run`; `lines`: the line of the input that each request stands on."""

        def listen(index: int, step: TraceStep) -> None:
            self.lookahead_wins += step.winner > 0
            self.accepted += len(step.accepted)
            if self._file is not None:
                line = {} if lines is None else {"line": lines[index]}
                self._file.write(json.dumps({**line, **asdict(step)}) + "\n")

        return listen

    def __enter__(self) -> StepRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
