"""`lopa conformance`: recorded cases are replayed, and every verdict is printed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from lopa_lab.conformance import Verdict, read_cases, replay
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution.device import DEVICES

STYLES = {"passed": "green", "differs": "red", "not supported": "yellow", "error": "red", "skipped": "dim"}


def run_conformance(
    case_files: Sequence[Path],
    models: Path,
    *,
    group: Mapping[str, Any],
    device: str,
    implementation: str,
    as_json: bool,
) -> bool:
    """Replay all files, print every verdict as it comes and a summary; true if all is as recorded, but for rows that
    are refused by design.

    `models`: folder of the checkpoints. `group`: settings of a group of workers; without any the cases run in this
    process. `implementation`: what runs the models, as `model.implementation` says.

    Raises SettingsError if the files have no cases, or none that can run as the settings say.
    """
    import torch

    torch.set_num_threads(1)
    given = Config.parse(
        {"model": {"device": device, "implementation": implementation}, "group": dict(group)}
    )
    if not group:
        DEVICES[given.model.device].torch_device()
    cases = [case for file in case_files for case in read_cases(file)]
    if not cases:
        raise SettingsError("no cases in the given files; a file has one JSON object per line")
    if not models.is_dir():
        raise SettingsError(
            f"--models: no folder {models}; it must have one checkpoint folder per recorded model"
        )

    def make_engine(config: Config) -> Engine:
        model = config.model.replace(implementation=given.model.implementation)
        config = config.replace(model=model, group=given.group)
        if not group:
            return LocalEngine.from_config(config)
        from actors.engine import RayEngine

        return RayEngine.from_config(config)

    counts: Counter[str] = Counter()
    by_design = 0
    console = Console(highlight=False, soft_wrap=True)
    for verdict in replay(cases, models, make_engine, device=device, logits=not group):
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
