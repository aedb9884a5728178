"""Parts: what `lopa bench all` measures on a kind of device, each with one command, in a process of its own.

Records that are in the folder already are kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lopa_lab.bench.measurements import BenchRecord
from lopa_ray.errors import SettingsError

PUBLISHED_SHAPES = ("dream-7b", "llada-8b", "sdar-4b")


@dataclass(frozen=True, slots=True)
class Part:
    """One record."""

    name: str
    """The name of the record's file."""
    arguments: tuple[str, ...]
    """The command, and its options with a value each."""
    smallest: tuple[str, ...]
    """Options and values in place of those, to see within seconds that it runs."""

    def command(self, *, smallest: bool) -> tuple[str, ...]:
        """The arguments of `lopa bench`."""
        if not smallest:
            return self.arguments
        replaced = set(self.smallest[::2])
        name, *options = self.arguments
        pairs = zip(options[::2], options[1::2], strict=True)
        kept = [word for pair in pairs if pair[0] not in replaced for word in pair]
        return (name, *kept, *self.smallest)


def parts_of(device: str) -> list[Part]:
    """The parts of a kind of device, the most important ones first."""
    return list(_cpu_parts() if device == "cpu" else _accelerator_parts(device))


def _part(name: str, command: str, smallest: str) -> Part:
    return Part(name, tuple(command.split()), tuple(smallest.split()))


def _cpu_parts() -> Iterator[Part]:
    yield _part(
        "forward-cpu",
        "forward --shape dream-27m --branches 1,2,4,5,8,9 --window 32,64 --device cpu",
        "--branches 1,2 --window 8 --prefix 16 --layers 1 --repeats 2",
    )
    yield _part(
        "step-cpu",
        "step --shape dream-27m --workers 0,1,2 --branches 1,4,8 --device cpu",
        "--workers 0,1 --branches 2 --layers 1 --max-new-tokens 32 --steps 3",
    )
    yield _part(
        "decode-cpu",
        "decode --requests 100 --device cpu",
        "--requests 2 --decoder lopa,d2f --max-new-tokens 32",
    )
    yield _part(
        "commit-cpu",
        "commit --shape dream-27m --layers 2,8 --workers 1,2 --span 8,32 --device cpu",
        "--workers 2 --span 8 --layers 1,2 --rounds 1 --transport collective",
    )
    yield _part(
        "many-workers-cpu",
        "step --shape dream-27m --layers 1 --workers 1,2,4,8 --branches 8 --max-new-tokens 64 --device cpu",
        "--workers 1,2 --branches 2 --max-new-tokens 32 --steps 3",
    )
    yield _part("control-cpu", "control", "--workers 1,2 --rounds 3")
    yield _part("startup-cpu", "startup --shape dream-27m --workers 2 --rounds 5", "--workers 1 --rounds 1")
    yield _part("recovery-cpu", "recovery --workers 1,2,4", "--workers 1 --rounds 1 --max-new-tokens 64")
    yield _part(
        "serve-cpu",
        "serve --start demo --concurrency 1,2,4,8,16 --rate 2,4 --deadline 2 --requests 96",
        "--concurrency 2 --rate 4 --requests 4 --max-tokens 16",
    )


def _accelerator_parts(device: str) -> Iterator[Part]:
    bf16 = f"--dtype bfloat16 --device {device}"
    tiny = "--branches 1,2 --window 8 --prefix 16 --layers 1 --repeats 2"
    for shape in PUBLISHED_SHAPES:
        yield _part(
            f"forward-{shape}-{device}",
            f"forward --shape {shape} --branches 1,4,8,15 --window 32,64 --prefix 512 {bf16}",
            tiny,
        )
    yield _part(
        f"step-dream-7b-{device}",
        f"step --shape dream-7b --workers 0,1 --branches 1,4,8,15 --prompt 512 {bf16}",
        "--workers 0 --branches 2 --layers 1 --prompt 16 --max-new-tokens 32 --steps 3",
    )
    for shape in PUBLISHED_SHAPES:
        yield _part(
            f"serve-{shape}-{device}",
            f"serve --start {shape} --concurrency 1,8,32,64 --requests 128 --deadline 10 --device {device}"
            " --set model.dtype=bfloat16 --set model.max_num_seqs=64 --set model.max_model_len=1024"
            " --lopa ignore_eos=true",
            "--concurrency 2 --requests 4 --max-tokens 16 --layers 1",
        )
    yield _part(
        f"decode-dream-7b-{device}",
        "decode --shape dream-7b --decoder lopa,d2f --requests 8 --prompt 512 --set model.dtype=bfloat16"
        f" --set decode.ignore_eos=true --device {device}",
        "--requests 2 --layers 1 --prompt 16 --max-new-tokens 32",
    )
    if device != "cuda":
        return
    yield _part(
        f"kernels-{device}",
        f"forward --shape dream-7b --layers 4 --kernel triton,sdpa --graphs off,on --branches 1,8 --prefix 512 {bf16}",
        tiny,
    )


STOP_TIMEOUT_S = 90.0
"""Longer than a server takes to stop."""


def run_parts(
    parts: Sequence[Part], folder: Path, *, seconds: float, smallest: bool, say: Callable[[str], None]
) -> dict[str, str]:
    """Measure the parts that `folder` has no record of, within so many seconds altogether.

    Returns why each part that is still missing is. A part that does not end in time is stopped.
    """
    deadline = time.monotonic() + seconds
    missing: dict[str, str] = {}
    for part in parts:
        path = folder / f"{part.name}.json"
        arguments = part.command(smallest=smallest)
        if _has_record(path, arguments):
            say(f"{part.name}: measured before")
            continue
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            missing[part.name] = "no time was left"
            continue
        say(f"{part.name}: lopa bench {' '.join(arguments)}")
        began = time.monotonic()
        reason = _run(arguments, path, remaining)
        if reason is None:
            say(f"{part.name}: {time.monotonic() - began:.0f} s")
        else:
            missing[part.name] = reason
            say(f"{part.name}: {reason}")
    return missing


def _has_record(path: Path, arguments: Sequence[str]) -> bool:
    """Whether the same command has made that file. Raises SettingsError if it is no record."""
    if not path.exists():
        return False
    command = BenchRecord.read(path).command
    return command[: len(arguments) + 2] == ("lopa", "bench", *arguments)


def _run(arguments: Sequence[str], path: Path, seconds: float) -> str | None:
    """Why there is no record; None if there is one."""
    command = [sys.executable, "-m", "cluster.cli", "bench", *arguments, "--output", str(path)]
    # In a process group of its own, so that a server which it has started can be stopped with it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _stop(process)
        return "it did not end in the time that was left"
    if process.returncode == 0:
        return None
    lines = (errors or output).strip().splitlines()
    return lines[-1] if lines else f"exit status {process.returncode}"


def _stop(process: subprocess.Popen[str]) -> None:
    """Interrupt all processes of a part, and kill those that do not end."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.communicate(timeout=STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def choose_parts(parts: Sequence[Part], names: Sequence[str] | None) -> list[Part]:
    """The parts with these names, or all parts for None. Raises SettingsError for an unknown name."""
    by_name = {part.name: part for part in parts}
    for name in names or ():
        if name not in by_name:
            raise SettingsError(f"--parts: got {name!r}; allowed: {', '.join(by_name)}")
    return list(parts) if names is None else [by_name[name] for name in names]
