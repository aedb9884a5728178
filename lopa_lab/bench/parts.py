"""Parts: what `lopa bench all` measures on a kind of device, each with one command, in a process of its own.

Records that are in the folder already are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa_lab.bench.measurements import BenchRecord
from lopa_lab.bench.parent_death import end_with_parent
from lopa_ray.errors import SettingsError

PUBLISHED_SHAPES = ("dream-7b", "llada-8b", "sdar-4b")

_PARTS = Path(__file__).with_name("parts.json")
"""Parts by kind of device, the most important first; a name with `{shape}` stands for a part for each shape."""


@dataclass(frozen=True, slots=True)
class Part:
    """One record."""

    name: str
    """The name of the record's file."""
    arguments: str
    """The command, and its options with a value each."""
    smallest: str
    """Options and values in their place, to see within seconds that it runs."""

    def command(self, *, smallest: bool) -> tuple[str, ...]:
        """The arguments of `lopa bench`."""
        name, *options = self.arguments.split()
        replacing = self.smallest.split() if smallest else []
        pairs = zip(options[::2], options[1::2], strict=True)
        kept = [word for pair in pairs if pair[0] not in replacing[::2] for word in pair]
        return (name, *kept, *replacing)


def parts_of(device: str) -> list[Part]:
    """The parts of a kind of device, the most important first."""
    tables = json.loads(_PARTS.read_text(encoding="utf-8"))
    texts = tables["cpu"] if device == "cpu" else tables["accelerator"] + tables.get(device, [])
    return [
        Part(*(part[key].format(shape=shape, device=device) for key in ("name", "command", "smallest")))
        for part in texts
        for shape in (PUBLISHED_SHAPES if "{shape}" in part["name"] else ("",))
    ]


STOP_TIMEOUT_S = 90.0
"""Longer than a server takes to stop."""


def run_parts(
    parts: Sequence[Part], folder: Path, *, seconds: float, smallest: bool, say: Callable[[str], None]
) -> dict[str, str]:
    """Measure the parts whose command has made no record in `folder`, within so many seconds altogether.

    Returns why each part that is still missing is. A part that does not end in time is stopped. Raises SettingsError if
    a file of the folder that is named like a part is no record.
    """
    deadline = time.monotonic() + seconds
    missing: dict[str, str] = {}
    for part in parts:
        path = folder / f"{part.name}.json"
        arguments = part.command(smallest=smallest)
        made_by = BenchRecord.read(path).command if path.exists() else ()
        if made_by[: len(arguments) + 2] == ("lopa", "bench", *arguments):
            say(f"{part.name}: measured before")
            continue
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            missing[part.name] = "no time was left"
            continue
        say(f"{part.name}: lopa bench {' '.join(arguments)}")
        began = time.monotonic()
        reason = _run(arguments, path, remaining)
        if reason is not None:
            missing[part.name] = reason
        say(f"{part.name}: {reason or f'{time.monotonic() - began:.0f} s'}")
    return missing


def _run(arguments: Sequence[str], path: Path, seconds: float) -> str | None:
    """Why there is no record; None if there is one."""
    command = [sys.executable, "-m", "cluster.cli", "bench", *arguments, "--output", str(path)]
    # In a session of its own, so that Ctrl-C in a terminal reaches it once, from `_stop`.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return "it did not end in the time that was left"
    finally:
        _stop(process)
    if process.returncode == 0:
        return None
    lines = (errors or output).strip().splitlines()
    return lines[-1] if lines else f"exit status {process.returncode}"


def _stop(process: subprocess.Popen[str]) -> None:
    """End a part, which ends what it has started, and kill what does not end."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def choose_parts(parts: Sequence[Part], names: Sequence[str] | None) -> list[Part]:
    """The parts with these names, or all parts for None. Raises SettingsError for an unknown name."""
    by_name = {part.name: part for part in parts}
    for name in names or ():
        if name not in by_name:
            raise SettingsError(f"--parts: got {name!r}; allowed: {', '.join(by_name)}")
    return list(parts) if names is None else [by_name[name] for name in names]
