"""HumanEval-Infilling, single-line."""

from __future__ import annotations

from collections.abc import Mapping

from lopa_lab.paper.tasks.benchmark_data import DataRow, HubData
from lopa_lab.paper.tasks.code_task import PASS_AT_1, CodeTask
from lopa_lab.paper.tasks.task import BenchmarkProblem
from lopa_ray.errors import SettingsError

_SINGLE_LINE = "SingleLineInfilling/"
"""How the ids of its problems begin; files of the other benchmarks have others."""


class HumanEvalInfilling(CodeTask):
    """1,033 lines to fill in: solutions of HumanEval with one line left out (Bavarian et al., 2022, arXiv:2207.14255;
    Fried et al., 2022, arXiv:2204.05999).

    The prompt is what stands in front of the line, as it is, and the suffix what follows. The program that is tested is
    prompt, answer and suffix, then the tests, as in OpenAI's human-eval-infilling. The answer is not cut: its largest
    length is `max_new_tokens`, and it ends earlier where the model fills in EOS.
    """

    name = "humaneval_infilling"
    title = "HumanEval-Infilling, single-line"
    shots = 0
    hub = HubData("loubnabnl/humaneval_infilling", "HumanEval-SingleLineInfilling")
    prompts = "openai/human-eval-infilling"
    uses_evalplus = False

    def selects(self, row: DataRow) -> bool:
        return str(row.get("task_id", _SINGLE_LINE)).startswith(_SINGLE_LINE)

    def required(self, row: DataRow) -> Mapping[str, type]:
        return dict.fromkeys(("prompt", "suffix", "entry_point", "test"), str)

    def problem(self, row: DataRow) -> BenchmarkProblem:
        """See `CodeTask`. Raises SettingsError for chats."""
        if self.chat:
            raise SettingsError(f"--chat: {self.name} has no chats, it is code around a hole; leave it out")
        return BenchmarkProblem(str(row["task_id"]), row["prompt"], row=row, suffix=row["suffix"])

    def grade(self, problem: BenchmarkProblem, answer: str) -> dict[str, float]:
        row = problem.row
        program = f"{row['prompt']}{answer}{row['suffix']}\n{row['test']}\ncheck({row['entry_point']})"
        return {PASS_AT_1: float(self.passes(program))}
