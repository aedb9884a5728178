"""The paper's benchmarks in the harness: its tasks, and what this project changes in those of MBPP+."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from datasets import Dataset, DatasetDict
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from lopa_lab.paper.cell_run import _task_manager, evaluate
from lopa_lab.paper.tasks import BENCHMARKS, HarnessTask
from lopa_lab.requests import cut_at_stop
from support.paths import DATA

pytestmark = pytest.mark.medium


def test_all_tasks_are_in_the_harness() -> None:
    known = _task_manager().all_tasks
    tasks = [task for each in BENCHMARKS.values() for task in (each.text, each.chat) if task]
    assert not [task.name for task in tasks if task.name not in known]


class Answer(LM):
    """Gives every request the same answer."""

    tokenizer_name, has_chats = "none", True
    loglikelihood = loglikelihood_rolling = None

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.answer = answer

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        return [cut_at_stop(self.answer, request.args[1]["until"]) for request in requests]

    def apply_chat_template(self, history: Any, add_generation_prompt: bool = True) -> str:
        return ""

    def chat_template(self, chat_template: bool | str = False) -> str:
        return ""


def execute(references: list[str], predictions: list[list[str]], k: list[int]) -> Any:
    """Stands for the metric of the Hub, which runs programs in a process of their own."""
    ((test,), ((program,),)) = references, predictions
    try:
        exec(f"{program}\n{test}", {})
    except AssertionError:
        return {"pass@1": 0.0}, {}
    return {"pass@1": 1.0}, {}


@pytest.mark.parametrize(("added", "score"), [("value", 1.0), ("max(value, 0)", 0.0)])
def test_mbpp_plus_passes_with_the_further_tests_only(
    added: str, score: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer is right for the assertions of the row, and wrong for the further tests of EvalPlus."""
    monkeypatch.setitem(
        sys.modules, "evaluate", SimpleNamespace(load=lambda _: SimpleNamespace(compute=execute))
    )
    row = json.loads((DATA / "code" / "mbpp_plus_hub.jsonl").read_text())
    of_row = {"dataset_path": None, "custom_dataset": lambda **_: DatasetDict(test=Dataset.from_list([row]))}
    task = BENCHMARKS["mbpp_plus"].chat
    assert task is not None
    benchmark = replace(BENCHMARKS["mbpp_plus"], chat=HarnessTask(task.name, {**task.changes, **of_row}))
    program = f"def add_up(values):\n    return sum({added} for value in values)\n```\nand more"
    scores, metric = evaluate(Answer(program), benchmark, None)
    assert scores[metric] == score
