"""HumanEval, 0-shot."""

from __future__ import annotations

from collections.abc import Mapping

from lopa_lab.paper.tasks.benchmark_data import DataRow, HubData
from lopa_lab.paper.tasks.code_task import HARNESS, PASS_AT_1, CodeTask, fenced, sanitized
from lopa_lab.paper.tasks.task import BenchmarkProblem

_STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


class HumanEval(CodeTask):
    """164 functions to complete (Chen et al., 2021, arXiv:2107.03374).

    Prompts and stop strings are those of lm-evaluation-harness: of its task `humaneval`, which asks to go on with the
    function, and in a chat of `humaneval_instruct`, where the answer begins with the function's head in a code block.

    The solution that is tested is what `evalplus.sanitize` keeps of prompt, line break and answer, after the answer has
    lost its Markdown fences: the post-processing of the paper's authors. It runs after the prompt, a function without a
    body, since the tests of HumanEval/50 call the other function of their prompt, which EvalPlus 0.3 drops. The harness
    itself runs prompt and answer as they are.
    """

    name = "humaneval"
    title = "HumanEval"
    shots = 0
    hub = HubData("openai/openai_humaneval")
    prompts = f"{HARNESS}, humaneval 1.0 (chat: humaneval_instruct 4.0)"

    def required(self, row: DataRow) -> Mapping[str, type]:
        return dict.fromkeys(("prompt", "entry_point", "test"), str)

    def problem(self, row: DataRow) -> BenchmarkProblem:
        problem_id, prompt = str(row["task_id"]), row["prompt"]
        if not self.chat:
            return BenchmarkProblem(problem_id, prompt, stop=_STOP, row=row)
        task = "Write a solution to the following problem and make sure that it passes the tests:"
        request = f"{task}\n```python\n{prompt}\n```\n"
        begun = f"Here is the completed function:\n```python\n{prompt}\n"
        return BenchmarkProblem(problem_id, ({"role": "user", "content": request},), begun, _STOP, row)

    def grade(self, problem: BenchmarkProblem, answer: str) -> dict[str, float]:
        row = problem.row
        solution = sanitized(row["prompt"] + "\n" + fenced(answer), row["entry_point"])
        program = "\n\n".join((row["prompt"], solution, row["test"], f"check({row['entry_point']})\n"))
        return {PASS_AT_1: float(self.passes(program))}
