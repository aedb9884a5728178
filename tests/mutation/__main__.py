"""Which faults do the tests find? Mutants are drawn once, and run before and after a change of the tests.

PYTHONPATH=tests python -m mutation draw | run RECORD [PHASE ...] | show RECORD [--against RECORD]
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from mutation.mutant import Mutant, mutants

ROOT = Path(__file__).parents[2]
DRAWN = Path(__file__).with_name("mutants.jsonl")
"""With the outcomes of the last complete run."""
PACKAGES = {  # package → its own tests
    "lopa_ray/decoding": "tests/unit/decoding",
    "lopa_ray/execution": "tests/unit/execution",
    "lopa_ray/scheduling": "tests/unit/scheduling",
    "actors": "tests/unit/actors",
    "cluster/openai": "tests/unit/openai",
}
PER_PACKAGE, SEED = 24, 0

FAST = "not medium and not slow and not nightly"
REST = "medium and not slow and not nightly"
PHASES = {
    "fast": (180, FAST, "{own}"),
    "own": (180, REST, "{own}"),
    "recorded": (180, "not slow and not nightly", "tests/unit/lab/conformance"),
}
"""Name → limit in seconds of the processor, marks and paths of tests. They may be idle for twice that time. Neither a
pause nor load is to look like a fault."""
MEMORY = 8 << 30  # bytes that a process of tests may have


def draw() -> list[Mutant]:
    """A control of each package, then mutants in turn from all packages and operators, one of a function."""
    drawn = []
    for package in PACKAGES:
        chance = random.Random(f"{SEED} {package}")
        texts = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / package).rglob("*.py"))}
        by_operator: dict[str, list[Mutant]] = defaultdict(list)
        for path, text in texts.items():
            for mutant in mutants(package, path.relative_to(ROOT).as_posix(), text):
                by_operator[mutant.operator].append(mutant)
        for each in by_operator.values():
            chance.shuffle(each)
        own = {("", ""): Mutant(package, f"{package}/__init__.py")}
        operators = itertools.cycle(sorted(by_operator))
        while len(own) <= PER_PACKAGE:
            if remaining := by_operator[next(operators)]:
                mutant = remaining.pop()
                with suppress(SyntaxError):
                    ast.parse(mutant.apply(texts[ROOT / mutant.module]) or "(")
                    own.setdefault((mutant.module, mutant.function), mutant)
        drawn.append(own.values())
    return [mutant for turn in zip(*drawn, strict=True) for mutant in turn]


def read(record: Path) -> list[Mutant]:
    return [Mutant(**json.loads(line)) for line in record.read_text(encoding="utf-8").splitlines()]


def write(record: Path, every: list[Mutant]) -> None:
    """Whole or not at all: a run may end at any time."""
    new = record.with_suffix(".new")
    new.write_text("".join(json.dumps(asdict(mutant)) + "\n" for mutant in every), encoding="utf-8")
    new.replace(record)


def found(mutant: Mutant) -> dict[str, Any] | None:
    return next((each for each in mutant.outcomes.values() if each["outcome"] != "survived"), None)


def run(record: Path, phases: list[str]) -> None:
    """Run what has no outcome in the record yet, in a copy of the last commit."""
    record.parent.mkdir(parents=True, exist_ok=True)
    every = read(record) if record.exists() else [replace(each, outcomes={}) for each in read(DRAWN)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        for phase in phases:
            for mutant in every:
                # Recorded cases use neither actors nor servers.
                nothing_to_run = phase == "recorded" and not mutant.package.startswith("lopa_ray")
                if nothing_to_run or found(mutant) or phase in mutant.outcomes:
                    continue
                outcome = run_mutant(Path(folder), mutant, *PHASES[phase])
                print(phase, f"{mutant.module}:{mutant.line}", mutant.operator, outcome, flush=True)
                if not mutant.operator and outcome["outcome"] != "survived":
                    sys.exit("tests fail without a fault")
                mutant.outcomes[phase] = outcome
                write(record, every)


def run_mutant(copy: Path, mutant: Mutant, limit: int, marks: str, paths: str) -> dict[str, Any]:
    """Run tests with the fault until one fails; the module's own file, if there is one, is the first."""
    path = copy / mutant.module
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if (mutated := mutant.apply(text)) is None:
        return {"outcome": "gone"}
    files = paths.format(own=PACKAGES[mutant.package]).split()
    first = f"{files[0]}/test_{path.stem}.py"
    command = [sys.executable, "-m", "pytest", "-xq", "-n0", "-pno:cacheprovider", "--tb=line", "-otimeout=0"]
    command += ["-m", marks, "--keep-duplicates", *[first] * (copy / first).exists(), *files]
    path.write_text(mutated, encoding="utf-8")
    try:
        return run_limited(command, copy, limit)
    finally:
        path.write_text(text, encoding="utf-8")


def run_limited(command: list[str], folder: Path, limit: int) -> dict[str, Any]:
    """Run tests, in this process's group: one signal stops or continues both."""

    def set_limits() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))

    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        tests = psutil.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, preexec_fn=set_limits
        )
        idle = 0
        while idle < 2 * limit:  # seconds without a pause, and without waiting for the processor
            with suppress(psutil.TimeoutExpired):
                tests.wait(1)
                break
            idle += tests.status() != psutil.STATUS_RUNNING
        else:
            for each in (*tests.children(recursive=True), tests):
                each.kill()
        status = tests.wait()
        log.seek(0)
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", log.read(), re.MULTILINE)
    # Killed beyond a limit by the kernel or by the lines above; 5: the package has no tests with these marks.
    outcome = "survived" if status in (0, 5) else "timeout" if status == -9 else "killed"
    test = failed[1] if failed else f"exit status {status:d}"
    return {"outcome": outcome, "seconds": round(time.monotonic() - begun), "test": test}


def show(record: Path, other: Path | None = None) -> None:
    """Print outcomes by package, what survived, and what only the tests of the other record found."""
    every = read(record)
    done = [
        (m.package, (found(m) or {"outcome": "survived"})["outcome"])
        for m in every
        if m.operator and m.outcomes
    ]
    for (package, outcome), number in sorted(Counter(done).items()):
        print(f"{package}: {number} {outcome}")
    before = read(other) if other else every
    for mutant, earlier in zip(every, before, strict=True):
        if mutant.operator and mutant.outcomes and not found(mutant):
            print(f"\n{mutant.module}:{mutant.line} {mutant.function}: survived {', '.join(mutant.outcomes)}")
            print(f"- {mutant.original}\n+ {mutant.mutated}")
            if was := found(earlier):
                print(f"! no longer found by {was.get('test')}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["draw"]:
            write(DRAWN, draw())
        case ["run", path, *phases]:
            run(Path(path), phases or ["fast", "own", "recorded"])
        case ["show", path]:
            show(Path(path))
        case ["show", path, "--against", other]:
            show(Path(path), Path(other))
        case _:
            sys.exit(__doc__)
