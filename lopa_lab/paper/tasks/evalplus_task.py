"""HumanEval+ and MBPP+, 0-shot, asked and graded as in EvalPlus (Liu et al., 2023, arXiv:2305.01210)."""

from __future__ import annotations

import ast
import json
import resource
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from lopa_lab.paper.tasks.benchmark_data import DataRow, HubData, Kinds
from lopa_lab.paper.tasks.code_task import PASS_AT_1, CodeTask, fenced, sanitized
from lopa_lab.paper.tasks.mbpp import tests_fault, with_assertions
from lopa_lab.paper.tasks.sandbox import SandboxLimits, run_program
from lopa_lab.paper.tasks.task import BenchmarkProblem
from lopa_ray.errors import LopaError, SettingsError

BASE_PASS_AT_1 = "base_pass@1"
"""The score by the tests of the benchmark without the plus."""

_REQUEST = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
_ANSWER = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding "
    "tests:"
)
_STOP = ("<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint(")

_CHECK = Path(__file__).with_name("evalplus_check.py")
_MEMORY_BYTES = 4 << 30
"""What EvalPlus limits the stack of a solution to; it is also its limit on memory."""


class EvalPlusTask(CodeTask):
    """A benchmark with the tests of EvalPlus.

    Prompts and stop strings are those of EvalPlus 0.3.1: for a base model the function's head, which it completes, and
    in a chat EvalPlus's request, with the answer begun up to the opening fence. (The paper's authors ask DiffuCoder
    with words of their own, "Can you complete the following Python function?".) What is tested is what
    `evalplus.sanitize` keeps of the solution: of prompt and answer, or in a chat of the answer alone.

    Rows of EvalPlus's releases are graded by EvalPlus's own comparison with the results of the canonical solution, in
    the sandbox, on the base inputs and then on the plus ones. Rows of the Hub are graded by their program `test`.
    """

    shots = 0
    prompts = "EvalPlus 0.3.1"
    data_set: ClassVar[str]
    """EvalPlus's name of the benchmark without the plus."""
    completion_stop: ClassVar[tuple[str, ...]]
    """Further stop strings of completions."""

    LIMITS = SandboxLimits(wall_seconds=60.0, cpu_seconds=60)
    RELEASE_LIMITS = SandboxLimits(wall_seconds=200.0, cpu_seconds=180, memory_bytes=_MEMORY_BYTES)
    """EvalPlus's own limits hold inside of these: a minute or so for all inputs of a problem."""

    def prompt(self, row: DataRow) -> str:
        """The function's head."""
        return str(row["prompt"])

    def entry_point(self, row: DataRow) -> str:
        """Name of the function that the tests call."""
        return str(row["entry_point"])

    @abstractmethod
    def grade_hub(self, row: DataRow, solution: str) -> dict[str, float]:
        """Scores by the tests of a row of the Hub."""

    def required(self, row: DataRow) -> Kinds:
        if not _is_release(row):
            return self.required_of_hub()
        texts = dict.fromkeys(("prompt", "entry_point", "canonical_solution"), str)
        return {**texts, "base_input": list, "plus_input": list, "atol": (int, float)}

    @abstractmethod
    def required_of_hub(self) -> Kinds:
        """The same as `required`, for rows of the Hub."""

    def problem(self, row: DataRow) -> BenchmarkProblem:
        problem_id, prompt = str(row["task_id"]), self.prompt(row).strip()
        if not self.chat:
            return BenchmarkProblem(problem_id, prompt + "\n", stop=(*_STOP, *self.completion_stop), row=row)
        request = {"role": "user", "content": f"{_REQUEST}\n```\n{prompt}\n```\n"}
        return BenchmarkProblem(problem_id, (request,), f"{_ANSWER}\n```python\n", (*_STOP, "\n```"), row)

    def grade(self, problem: BenchmarkProblem, answer: str) -> dict[str, float]:
        row = problem.row
        code = fenced(answer) if self.chat else f"{problem.prompt}{answer}"
        solution = sanitized(code, self.entry_point(row))
        if not _is_release(row):
            return self.grade_hub(row, solution)
        base = self._passes_evalplus(row, solution, "base_input")
        return {
            PASS_AT_1: float(base and self._passes_evalplus(row, solution, "plus_input")),
            BASE_PASS_AT_1: float(base),
        }

    def _passes_evalplus(self, row: DataRow, solution: str, inputs: str) -> bool:
        stack = resource.getrlimit(resource.RLIMIT_STACK)[1]
        if stack not in (resource.RLIM_INFINITY, -1) and stack < _MEMORY_BYTES:
            raise SettingsError(
                f"{self.name}: got a hard limit of {stack} bytes on the stack (ulimit -Hs); allowed: {_MEMORY_BYTES} "
                "or unlimited, since EvalPlus sets that limit"
            )
        keys = ("task_id", "prompt", "entry_point", "canonical_solution", "atol")
        given = {"data_set": self.data_set, "inputs": row[inputs], "solution": solution}
        problem = json.dumps({key: row[key] for key in keys} | given)
        outcome = run_program(_CHECK.read_text() + "\ncheck()\n", stdin=problem, limits=self.RELEASE_LIMITS)
        if outcome.exit_code == 1:
            raise LopaError(
                f"{self.name}: EvalPlus's check of {row['task_id']} failed: {outcome.stderr[-1000:]}"
            )
        return outcome.finished and not outcome.timed_out


class HumanEvalPlus(EvalPlusTask):
    """HumanEval with 80 times as many tests. On the Hub the tests of HumanEval are not told from the others."""

    name = "humaneval_plus"
    title = "HumanEval+"
    hub = HubData("evalplus/humanevalplus")
    data_set = "humaneval"
    completion_stop = ("\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert ")

    def required_of_hub(self) -> Kinds:
        return dict.fromkeys(("prompt", "entry_point", "test"), str)

    def grade_hub(self, row: DataRow, solution: str) -> dict[str, float]:
        program = f"{solution}\n\n{row['test']}\n\ncheck({row['entry_point']})\n"
        return {PASS_AT_1: float(self.passes(program))}


class MbppPlus(EvalPlusTask):
    """378 of MBPP's functions with 35 times as many tests.

    Rows of the Hub have the sentence alone; EvalPlus's prompt is made of it and of the first assertion.
    """

    name = "mbpp_plus"
    title = "MBPP+"
    hub = HubData("evalplus/mbppplus")
    data_set = "mbpp"
    completion_stop = ('\n"""', "\nassert")

    def required_of_hub(self) -> Kinds:
        return {"prompt": str, "code": str, "test": str, "test_list": list}

    def fault(self, row: DataRow) -> str | None:
        return None if _is_release(row) else tests_fault(row) or _source_fault(row)

    def prompt(self, row: DataRow) -> str:
        prompt = super().prompt(row)
        return prompt if _is_release(row) else f'"""\n{prompt}\n{row["test_list"][0]}\n"""\n'

    def entry_point(self, row: DataRow) -> str:
        return super().entry_point(row) if _is_release(row) else str(_called_function(row))

    def grade_hub(self, row: DataRow, solution: str) -> dict[str, float]:
        base = self.passes(with_assertions(row, solution))
        return {
            PASS_AT_1: float(base and self.passes(f"{solution}\n\n{row['test']}\n")),
            BASE_PASS_AT_1: float(base),
        }


def _is_release(row: DataRow) -> bool:
    return "plus_input" in row


def _source_fault(row: DataRow) -> str | None:
    """Why `_called_function` finds none in a row of the Hub, in words; None: it finds one."""
    for key, source in (("code", row["code"]), ("test_list", row["test_list"][0])):
        try:
            ast.parse(source)
        except (SyntaxError, ValueError, RecursionError) as error:
            return f"{key!r}: got no Python ({error}); allowed: source that can be parsed"
    if _called_function(row) is None:
        test = row["test_list"][0]
        return f"'code': got no function that the first assertion calls ({test}); allowed: its definition"
    return None


def _called_function(row: DataRow) -> str | None:
    """The function of the canonical solution that the first assertion calls."""
    defined = {node.name for node in ast.walk(ast.parse(row["code"])) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(ast.parse(row["test_list"][0])):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            return node.func.id
    return None
