"""The benchmarks by name: those of the paper, and HumanEval-Infilling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lopa_lab.paper.tasks.evalplus_task import HumanEvalPlus, MbppPlus
from lopa_lab.paper.tasks.harness_task import BENCHMARKS, HarnessTask
from lopa_lab.paper.tasks.humaneval import HumanEval
from lopa_lab.paper.tasks.humaneval_infilling import HumanEvalInfilling
from lopa_lab.paper.tasks.mbpp import Mbpp
from lopa_lab.paper.tasks.task import PaperTask
from lopa_ray.errors import SettingsError

CODE_TASKS: dict[str, Callable[..., PaperTask]] = {
    task.name: task for task in (HumanEval, HumanEvalInfilling, HumanEvalPlus, Mbpp, MbppPlus)
}
"""The code benchmarks by name; each takes a file or None, and `chat`."""

WORD_PROBLEMS = "word_problems"
"""The benchmark whose problems are in the package."""

ASKED_AS_TEXT = ("humaneval", "humaneval_infilling")
"""Benchmarks that are prompted with plain text for every checkpoint: the prompt is code to complete. HumanEval is so by
the paper's authors."""


def benchmark_names() -> tuple[str, ...]:
    """The benchmarks of `open_benchmark`."""
    return (*BENCHMARKS, *CODE_TASKS)


def check_benchmark(name: str, data: Path | None = None, shots_data: Path | None = None) -> None:
    """Raises SettingsError for an unknown name, files that are not there, and shots that are not to be given."""
    if name not in benchmark_names():
        raise SettingsError(f"no benchmark {name!r}; allowed: {', '.join(benchmark_names())}")
    if shots_data is not None:
        if name not in BENCHMARKS or BENCHMARKS[name].shots_from is None:
            raise SettingsError(f"--shots-data: {name} has its own shots; leave it out")
        if data is None:
            raise SettingsError("--shots-data: needs --data; give both, or neither")
    for option, path in (("--data", data), ("--shots-data", shots_data)):
        if path is not None and not path.is_file():
            raise SettingsError(f"{option}: no file {path}; name a JSON Lines file of problems")
    if data is not None and shots_data is not None and data.samefile(shots_data):
        raise SettingsError(
            f"--shots-data: got the file of --data, {data}; leave it out: shots are drawn from --data then, never the "
            "problem itself"
        )


def open_benchmark(
    name: str, *, data: Path | None = None, shots_data: Path | None = None, chat: bool = False
) -> PaperTask:
    """The benchmark of that name over `data`, or over its own; see `HarnessTask` and `CODE_TASKS`.

    Raises SettingsError for what `check_benchmark` refuses, data that cannot be read, and a missing package.
    """
    check_benchmark(name, data, shots_data)
    if name in BENCHMARKS:
        return HarnessTask(name, data=data, shots_data=shots_data, chat=chat)
    return CODE_TASKS[name](data=data, chat=chat)
