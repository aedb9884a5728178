"""MBPP, 3-shot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lopa_lab.paper.tasks.benchmark_data import DataRow, HubData
from lopa_lab.paper.tasks.code_task import HARNESS, PASS_AT_1, CodeTask, fenced
from lopa_lab.paper.tasks.task import BenchmarkProblem
from lopa_ray.text.chat_template import Message

_TEST_SPLIT = range(11, 511)
"""Task ids, as MBPP's README says."""

_EXAMPLES = Path(__file__).with_name("mbpp_examples.json")

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
            prompt = "".join([*shots, _plain_request(row)])
            return BenchmarkProblem(problem_id, prompt, stop=("[DONE]",), row=row)
        messages: list[Message] = []
        for example in _examples():
            answer = f"{_BEGUN}{example['code']}\n```"
            messages += [_chat_request(example), {"role": "assistant", "content": answer}]
        return BenchmarkProblem(problem_id, (*messages, _chat_request(row)), _BEGUN, ("\n```",), row)

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
    return _request(row, " ", "\n\n") + "\n[BEGIN]\n"


def _chat_request(row: DataRow) -> Message:
    return {"role": "user", "content": _request(row, "\n", "\n")}


def _request(row: DataRow, around_task: str, before_tests: str) -> str:
    task, tests = row["prompt" if "prompt" in row else "text"], "\n".join(row["test_list"][:3])
    begin = f"You are an expert Python programmer, and here is your task:{around_task}{task}{around_task}"
    return f"{begin}Your code should pass these tests:{before_tests}{tests}"


@cache
def _examples() -> list[dict[str, Any]]:
    examples: list[dict[str, Any]] = json.loads(_EXAMPLES.read_text())["examples"]
    return examples
