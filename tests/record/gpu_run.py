"""Run everything that needs a CUDA device, and record the outcome in `tests/gpu/LAST_RUN.md`: `make test-gpu`.

It uses the Python that runs it: pytest, numpy, safetensors and torch are enough for the kernels. Tests that need
pydantic or Ray are skipped if these are missing, and the record names the reason.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from datetime import UTC, datetime

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


class OutcomeRecorder:
    """A pytest plugin that records the outcome of each test, and the figures that tests report."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        """Test → passed, or failed or skipped with the reason."""
        self.figures: dict[str, float] = {}
        """What was measured, with its unit → figure."""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that is skipped as a whole, or cannot be read."""
        if not report.passed:
            self._record(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The call of a test counts, or the first phase that did not pass."""
        if report.when == "call" and report.passed:
            self.outcomes[report.nodeid] = "passed"
            self.figures |= {str(what): float(str(value)) for what, value in report.user_properties}
        elif not report.passed:
            self._record(report)

    def _record(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        name = report.nodeid
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            self.outcomes[name] = f"skipped: {reason.removeprefix('Skipped: ')}"
        else:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.outcomes[name] = (
                f"**failed**: {str(crash.message if crash else report.longreprtext).splitlines()[0]}"
            )


def as_markdown(recorder: OutcomeRecorder, machine: str, seconds: float) -> str:
    """The record as Markdown."""
    counts = [
        f"{sum(outcome.strip('*').startswith(word) for outcome in recorder.outcomes.values())} {word}"
        for word in ("passed", "failed", "skipped")
    ]
    lines = ["# Last run of `make test-gpu`", "", machine, "", f"{', '.join(counts)} in {seconds:.0f} s.", ""]
    if recorder.figures:
        lines += ["| measured | |", "|---|---|"]
        lines += [f"| {what} | {figure:.3g} |" for what, figure in recorder.figures.items()]
        lines.append("")
    lines += ["| test | outcome |", "|---|---|"]
    lines += [
        f"| `{name}` | {outcome.replace('|', '¦')} |" for name, outcome in sorted(recorder.outcomes.items())
    ]
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
    machine, recorder, began = describe_machine(), OutcomeRecorder(), time.monotonic()
    folder = RECORD.parent
    options = ["-c", str(folder / "pytest.ini"), "--continue-on-collection-errors", "-v"]
    status = pytest.main([str(folder), *options, *sys.argv[1:]], plugins=[recorder])
    RECORD.write_text(as_markdown(recorder, machine, time.monotonic() - began), encoding="utf-8")
    print(f"recorded in {RECORD}; `tested` of the device in lopa_ray/execution/device.py follows from it")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
