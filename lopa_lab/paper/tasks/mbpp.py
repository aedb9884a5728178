"""MBPP, 3-shot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from lopa_lab.paper.tasks.benchmark_data import DataRow, HubData
from lopa_lab.paper.tasks.code_task import HARNESS, PASS_AT_1, CodeTask, fenced
from lopa_lab.paper.tasks.task import BenchmarkProblem
from lopa_ray.text.chat_template import Message

_TEST_SPLIT = range(11, 511)
"""Task ids, as MBPP's README says."""

_BEGUN = "\n```python\n"
"""How answers of a chat begin."""


class Mbpp(CodeTask):
    """500 functions to write from a sentence and three assertions (Austin et al., 2021, arXiv:2108.07732).

    Prompts, examples (MBPP's tasks 2 to 4) and stop string are those of lm-evaluation-harness: of its task `mbpp`, and
    in a chat of `mbpp_instruct`, with each example as a turn; such an answer ends at the closing fence. Rows of the
    full file and of the sanitized one are read; of a file with all tasks, those of the test split.

    The program that is tested is `test_setup_code` or `test_imports`, the answer up to `[DONE]` without Markdown
    fences, and all of `test_list`. The harness runs the first three assertions, and no set-up code.
    """

    name = "mbpp"
    title = "MBPP"
    shots = 3
    hub = HubData("google-research-datasets/mbpp", "full")
    prompts = f"{HARNESS}, mbpp 1.0 (chat: mbpp_instruct 1.0)"
    uses_evalplus = False

    def selects(self, row: DataRow) -> bool:
        return row.get("task_id") in _TEST_SPLIT or "task_id" not in row

    def required(self, row: DataRow) -> Mapping[str, type]:
        return {"prompt" if "prompt" in row else "text": str, "test_list": list}

    def fault(self, row: DataRow) -> str | None:
        return tests_fault(row)

    def problem(self, row: DataRow) -> BenchmarkProblem:
        problem_id = str(row["task_id"])
        if not self.chat:
            shots = [f"{_plain_request(example)}{example['code']}\n[DONE]\n\n" for example in _examples()]
            return BenchmarkProblem(
                problem_id, "".join(shots) + _plain_request(row), stop=("[DONE]",), row=row
            )
        messages: list[Message] = []
        for example in _examples():
            messages.append({"role": "user", "content": _chat_request(example)})
            messages.append({"role": "assistant", "content": f"{_BEGUN}{example['code']}\n```"})
        messages.append({"role": "user", "content": _chat_request(row)})
        return BenchmarkProblem(problem_id, tuple(messages), _BEGUN, ("\n```",), row)

    def grade(self, problem: BenchmarkProblem, answer: str) -> dict[str, float]:
        return {PASS_AT_1: float(self.passes(with_assertions(problem.row, fenced(answer))))}


def tests_fault(row: DataRow) -> str | None:
    """The reason why `with_assertions` cannot use a row with a list `test_list`, in words; None if it can."""
    if not row["test_list"]:
        return "'test_list': got an empty list; allowed: at least one assertion"
    for key in ("test_list", "test_imports"):
        lines = row.get(key, [])
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            return f"{key!r}: got {lines!r:.60}; allowed: a list of str"
    setup = row.get("test_setup_code", "")
    return None if isinstance(setup, str) else f"'test_setup_code': got {type(setup).__name__}; allowed: str"


def with_assertions(row: DataRow, solution: str) -> str:
    """The program of a row of MBPP or of MBPP+ on the Hub, tested by `test_list`."""
    setup = [*row.get("test_imports", ()), row.get("test_setup_code", "")]
    return "\n".join([*setup, solution, *row["test_list"]]) + "\n"


def _plain_request(row: DataRow) -> str:
    return (
        f"You are an expert Python programmer, and here is your task: {_task(row)} Your code should pass these tests:"
        + (f"\n\n{_tests(row)}\n[BEGIN]\n")
    )


def _chat_request(row: DataRow) -> str:
    task = f"You are an expert Python programmer, and here is your task:\n{_task(row)}"
    return f"{task}\nYour code should pass these tests:\n{_tests(row)}"


def _task(row: DataRow) -> str:
    return str(row["prompt"] if "prompt" in row else row["text"])


def _tests(row: DataRow) -> str:
    return "\n".join(row["test_list"][:3])


@cache
def _examples() -> list[dict[str, Any]]:
    file = Path(str(resources.files("lopa_lab.paper.tasks"))) / "mbpp_examples.json"
    examples: list[dict[str, Any]] = json.loads(file.read_text())["examples"]
    return examples
