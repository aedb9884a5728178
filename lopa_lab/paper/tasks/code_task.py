"""CodeTask: what the code benchmarks have in common."""

from __future__ import annotations

import platform
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from lopa_lab.paper.tasks.benchmark_data import BenchmarkData, DataRow, HubData, Kinds
from lopa_lab.paper.tasks.sandbox import SandboxLimits, run_program
from lopa_lab.paper.tasks.task import BenchmarkProblem, PaperTask
from lopa_ray.errors import SettingsError
from lopa_ray.extras import install_advice

HARNESS = "lm-eval 0.4.13"
"""The release of lm-evaluation-harness whose prompts are used, word for word."""

PASS_AT_1 = "pass@1"


class CodeTask(PaperTask):
    """A benchmark whose answers are programs, run in `lopa_lab.paper.tasks.sandbox` with the tests of their problem.

    A program passes if it runs to the end of the tests within `LIMITS`: 1.0, otherwise 0.0.
    """

    runs_code = True
    metric = PASS_AT_1
    hub: ClassVar[HubData]
    """Where the data is from without a file."""
    prompts: ClassVar[str]
    """Whose prompts these are, with a version."""

    LIMITS: ClassVar[SandboxLimits] = SandboxLimits()

    def __init__(self, data: Path | None = None, *, chat: bool = False) -> None:
        """`data`: a file of JSON lines, or None for the Hub. `chat`: prompt with the model's chat template."""
        self._file = data
        self.chat = chat

    def problems(self, limit: int | None = None) -> Sequence[BenchmarkProblem]:
        return [self.problem(row) for row in self._data.rows[:limit]]

    @property
    def size(self) -> int:
        return len(self._data.rows)

    @abstractmethod
    def problem(self, row: DataRow) -> BenchmarkProblem:
        """The prompt of a row."""

    @abstractmethod
    def required(self, row: DataRow) -> Kinds:
        """Keys that a row must have, beside `task_id`, and their types."""

    def fault(self, row: DataRow) -> str | None:
        """The fault of a row that has the required keys, in words; None if the row is valid."""
        return None

    def selects(self, row: DataRow) -> bool:
        """Whether a row belongs to the benchmark. Without a `task_id` it does, so that the lack is reported."""
        return True

    def versions(self) -> dict[str, str]:
        versions = {"prompts": self.prompts, "python": platform.python_version(), "data": self._data.version}
        if self.uses_evalplus:
            versions["evalplus"] = evalplus_version(self.name)
        return versions

    uses_evalplus: ClassVar[bool] = True

    @cached_property
    def _data(self) -> BenchmarkData:
        if self.uses_evalplus:
            evalplus_version(self.name)
        data = BenchmarkData.read(self._file) if self._file else BenchmarkData.download(self.hub)
        data = data.select(self.selects)
        if not data.rows:
            raise SettingsError(f"{data.option}: {data.source}: has no rows of {self.name}")
        data.check(lambda row: {"task_id": (str, int), **self.required(row)}, self.fault)
        data.check_unique("task_id")
        return data

    def passes(self, program: str) -> bool:
        """Whether a program with its tests runs to its end."""
        outcome = run_program(program, limits=self.LIMITS)
        return outcome.finished and not outcome.timed_out


def evalplus_version(task: str) -> str:
    """Raises SettingsError where EvalPlus is not installed."""
    try:
        return metadata.version("evalplus")
    except metadata.PackageNotFoundError:
        raise SettingsError(f"{task} needs EvalPlus; {install_advice('eval')}") from None


def fenced(answer: str) -> str:
    """The code in the first Markdown block of an answer, or all of it up to the fence that closes it, if any."""
    _, opened, code = answer.partition("```python\n")
    return (code if opened else answer).partition("```")[0]


def sanitized(code: str, entry_point: str) -> str:
    """Return what EvalPlus keeps of a solution (`evalplus.sanitize.sanitize`): the function and what it needs.

    Releases differ: 0.2 cuts by regular expressions, 0.3 by a parser.
    """
    from evalplus.sanitize import sanitize

    try:
        return str(sanitize(code, entry_point))
    except (ValueError, RecursionError):
        # A parser cannot read this program: it has NUL bytes, or is nested too deeply. Unchanged, it fails its tests.
        return code
