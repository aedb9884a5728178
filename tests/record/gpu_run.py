"""Run everything that needs a CUDA device, and record the outcome in `tests/gpu/LAST_RUN.md`: `make test-gpu`.

It uses the Python that runs it: pytest, numpy, safetensors and torch are enough for the kernels. Tests that need
pydantic or Ray are skipped if these are missing, and the record names the reason.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from support.paths import ROOT

try:
    import pytest
    import torch
except ModuleNotFoundError as error:
    sys.exit(
        f"{sys.executable} has no {error.name}; install it, or name another Python: after `make dev`, "
        "`make test-gpu PYTHON=.venv/bin/python`"
    )

RECORD = ROOT / "tests" / "gpu" / "LAST_RUN.md"


def outcome(case: ElementTree.Element) -> str:
    """Passed, or failed or skipped with the reason."""
    for kind, word in (("failure", "**failed**"), ("error", "**failed**"), ("skipped", "skipped")):
        if (found := case.find(kind)) is not None:
            said = [found.get("message", ""), *(found.text or "").split("\n")]
            # Of a whole file the message says only that it could not be read, or is skipped.
            return f"{word}: {(said[-1] if said[0].startswith('collection') else said[0]).splitlines()[0]}"
    return "passed"


def as_markdown(report: Path, machine: str) -> str:
    """The record, made of pytest's `--junitxml`."""
    suite = ElementTree.parse(report).getroot()[0]
    cases = list(suite.iter("testcase"))
    outcomes = sorted((f"{case.get('classname')}::{case.get('name')}", outcome(case)) for case in cases)
    counts = [
        f"{sum(said.strip('*').startswith(word) for _, said in outcomes)} {word}"
        for word in ("passed", "failed", "skipped")
    ]
    seconds = float(suite.get("time", 0))
    lines = ["# Last run of `make test-gpu`", "", machine, "", f"{', '.join(counts)} in {seconds:.0f} s.", ""]
    if figures := [(found.get("name"), found.get("value", "")) for found in suite.iter("property")]:
        lines += ["| measured | |", "|---|---|"]
        lines += [f"| {what} | {float(figure):.3g} |" for what, figure in figures]
        lines.append("")
    lines += ["| test | outcome |", "|---|---|"]
    lines += [f"| `{name}` | {said.replace('|', '¦')} |" for name, said in outcomes]
    return "\n".join(lines) + "\n"


def describe_machine() -> str:
    """Date, GPUs, versions and commit."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {', '.join(gpus)}, torch {torch.__version__} with CUDA {torch.version.cuda}, "
        f"Python {platform.python_version()}, {_describe_commit()}."
    )


def _describe_commit() -> str:
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
        # The record itself is about to change.
        changed = subprocess.check_output(
            [*git, "status", "--porcelain", "--", ".", f":!{RECORD.relative_to(ROOT)}"], text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        return f"commit unknown ({type(error).__name__}: the tree is no git checkout, or git is missing)"
    return f"commit {commit}{' with changes' if changed else ''}"


def main() -> int:
    """Exit status of the tests; without a GPU nothing is recorded."""
    if not torch.cuda.is_available():
        print("torch finds no GPU: no test was run, and nothing was recorded", file=sys.stderr)
        return 1
    machine, folder = describe_machine(), RECORD.parent
    options = ["-c", str(folder / "pytest.ini"), "--continue-on-collection-errors", "-v"]
    with tempfile.TemporaryDirectory() as reports:
        report = Path(reports) / "report.xml"
        status = pytest.main([str(folder), *options, f"--junitxml={report}", *sys.argv[1:]])
        RECORD.write_text(as_markdown(report, machine), encoding="utf-8")
    print(f"recorded in {RECORD}; `tested` of the device in lopa_ray/execution/device.py follows from it")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
