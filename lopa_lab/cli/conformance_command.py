"""`lopa conformance`: recorded cases are replayed, and every verdict is printed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cluster.command_line import options
from cluster.command_line.engine_options import EngineOptions, engine_options
from cluster.command_line.exit_status import FAILED
from lopa_ray.errors import SettingsError

if TYPE_CHECKING:
    from lopa_lab.conformance.cases import Verdict

STYLES = {"passed": "green", "differs": "red", "not supported": "yellow", "error": "red", "skipped": "dim"}


def conformance(
    *,
    cases: Annotated[list[Path], typer.Argument(help="Files of recorded cases (JSONL).", metavar="CASES...")],
    models: Annotated[Path, typer.Option(help="Folder of the recorded checkpoints; adapters in ../lora.")],
    engine: Annotated[EngineOptions, engine_options("group.*")],
    device: Annotated[str, typer.Option(help=f"{options.allowed_values('device')}.")] = "cpu",
    implementation: Annotated[
        str, typer.Option(help=f"{options.allowed_values('implementation')}.")
    ] = "auto",
    as_json: options.JsonOption = False,
) -> None:
    """Replay recorded cases and say what differs first.

    Each row's kind is recognised by its keys. Without options of the group the cases run in this process, with
    one of them on a group of branch workers; logits never leave a worker, so forward cases are then skipped, and
    said to be. Exit status 1 if a case differs, is not supported or cannot be read, or if none was compared. Cases
    with a mask token in the prompt are refused by design, and do not count.
    """
    import torch

    from lopa_lab.conformance.cases import read_cases
    from lopa_lab.conformance.replay import replay
    from lopa_ray.engine.base import Engine
    from lopa_ray.engine.config import Config
    from lopa_ray.engine.local import LocalEngine
    from lopa_ray.execution.device import DEVICES

    torch.set_num_threads(1)
    overrides = engine.overrides()
    given = Config.parse({"model": {"implementation": implementation, "device": device}}, overrides)
    on_workers = "group" in overrides
    if not on_workers:
        DEVICES[given.model.device].torch_device()
    recorded = [case for file in cases for case in read_cases(file)]
    if not recorded:
        raise SettingsError("no cases in the given files; a file has one JSON object per line")
    if not models.is_dir():
        raise SettingsError(
            f"--models: no folder {models}; it must have one checkpoint folder per recorded model"
        )

    def make_engine(config: Config) -> Engine:
        model = config.model.replace(implementation=given.model.implementation)
        config = config.replace(model=model, group=given.group)
        if not on_workers:
            return LocalEngine.from_config(config)
        from actors.engine import RayEngine

        return RayEngine.from_config(config)

    verdicts = replay(recorded, models, make_engine, device=device, logits=not on_workers)
    passed = _print_verdicts(verdicts, as_json)
    if not passed:
        raise typer.Exit(FAILED)


def _print_verdicts(verdicts: Iterable[Verdict], as_json: bool) -> bool:
    """Print every verdict as it comes and a summary; true if all is as recorded, but for rows that are refused by
    design, and one or more were compared or refused so."""
    counts: Counter[str] = Counter()
    by_design = 0
    console = Console(highlight=False, soft_wrap=True)
    for verdict in verdicts:
        counts[verdict.status] += 1
        by_design += verdict.by_design
        if as_json:
            print(json.dumps(verdict.as_dict()), flush=True)
        else:
            console.print(_format_verdict(verdict))
    summary = _summary(counts, by_design)
    (Console(stderr=True, highlight=False, soft_wrap=True) if as_json else console).print(summary)
    if counts["differs"] or counts["error"] or counts["not supported"] > by_design:
        return False
    return counts["passed"] + by_design > 0


def _format_verdict(verdict: Verdict) -> Text:
    text = Text()
    text.append(f"{verdict.status:<13}", STYLES[verdict.status])
    text.append(f" {verdict.id}")
    if verdict.differences:
        first = verdict.differences[0]
        where = f" in round {first.round}" if first.round else ""
        text.append(
            f": {first.what}{where}: recorded {_truncated(first.expected)}, got {_truncated(first.got)}"
        )
    elif verdict.reason:
        text.append(f": {verdict.reason}")
    return text


def _truncated(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _summary(counts: Counter[str], by_design: int) -> str:
    refused = f"{counts['not supported']} not supported"
    if by_design:
        refused += f" ({by_design} by design: a mask token in the prompt is refused)"
    parts = [f"{counts['passed']} passed", f"{counts['differs']} differ", refused]
    if counts["error"]:
        parts.append(f"{counts['error']} could not be run")
    if counts["skipped"]:
        parts.append(f"{counts['skipped']} skipped (local engine only)")
    return ", ".join(parts)
