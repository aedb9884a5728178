"""The paper's benchmarks in the harness: prompts, and what passes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lm_eval")

from datasets import Dataset, DatasetDict
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from lopa_lab.evaluation.chat_prompt import ChatPrompt
from lopa_lab.paper.cell_run import _task_manager, evaluate
from lopa_lab.paper.tasks import BENCHMARKS, HarnessTask
from lopa_lab.requests import cut_at_stop
from support.paths import DATA

ENDS = {False: "[DONE] and more", True: "```\nand more"}
"""How answers go on, without and with chats."""

SUM = "def add_up(values):\n    return sum(values)\n"
NONE_NEGATIVE = "def add_up(values):\n    return sum(max(value, 0) for value in values)\n"
"""Right for the assertions of the row, wrong for the further tests of EvalPlus."""


class Answers(LM):
    """Answers each request by its number."""

    def __init__(self, answers: Callable[[int], str], has_chats: bool) -> None:
        super().__init__()
        self.answers, self.has_chats = answers, has_chats
        self.prompts: list[str] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        self.prompts = [request.args[0] for request in requests]
        return [
            cut_at_stop(self.answers(index), request.args[1]["until"])
            for index, request in enumerate(requests)
        ]

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood

    def apply_chat_template(self, history: Any, add_generation_prompt: bool = True) -> ChatPrompt:
        return ChatPrompt.of_history(history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return ""

    tokenizer_name = "none"


def execute(references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]) -> Any:
    """Stands for the metric of the Hub, which runs programs in a process of their own."""
    passed = 0
    for test, (program,) in zip(references, predictions, strict=True):
        try:
            exec(f"{program}\n{test}", {})
            passed += 1
        except Exception:
            continue
    return {"pass@1": passed / len(references)}, {}


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = SimpleNamespace(compute=execute)
    monkeypatch.setitem(sys.modules, "evaluate", SimpleNamespace(load=lambda _: metric))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / "code" / name).read_text().splitlines()]


def over(task: HarnessTask, data: Sequence[Mapping[str, Any]]) -> HarnessTask:
    """The task over rows at hand."""

    def load(**_: Any) -> DatasetDict:
        return DatasetDict(test=Dataset.from_list([dict(row) for row in data]))

    nowhere = {"dataset_path": None, "dataset_name": None}
    return HarnessTask(task.name, {**task.changes, **nowhere, "custom_dataset": load})


def score(name: str, data: list[dict[str, Any]], answers: Callable[[int], str], chat: bool) -> Answers:
    """The model that was asked, with the score in `score`."""
    benchmark = BENCHMARKS[name]
    model = Answers(answers, has_chats=chat)
    of_chat = None if benchmark.chat is None else over(benchmark.chat, data)
    scores, metric = evaluate(model, replace(benchmark, text=over(benchmark.text, data), chat=of_chat), None)
    model.score = scores[metric]
    return model


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus"])
def test_humaneval(name: str, chat: bool) -> None:
    data = rows("humaneval.jsonl")
    answered = score(name, data, lambda index: data[index]["canonical_solution"], chat)
    assert answered.score == 1.0
    chats = chat and name != "humaneval"  # plain completion for every checkpoint
    assert all(isinstance(prompt, ChatPrompt) == chats for prompt in answered.prompts)
    assert all(row["prompt"] in prompt for row, prompt in zip(data, answered.prompts, strict=True)) or chats
    assert score(name, data, lambda _: "    return None\n", chat).score == 0.0


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_mbpp_plus_passes_with_the_further_tests_only(chat: bool) -> None:
    data, end = rows("mbpp_plus_hub.jsonl"), ENDS[chat]
    assert score("mbpp_plus", data, lambda _: SUM + end, chat).score == 1.0
    assert score("mbpp_plus", data, lambda _: NONE_NEGATIVE + end, chat).score == 0.0


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_mbpp_has_three_shots(chat: bool) -> None:
    tests = ["assert add_up([1, 2]) == 3", "assert add_up([]) == 0", "assert add_up([5]) == 5"]
    data = [{"text": "Write a function to add up a list.", "code": SUM, "test_list": tests}]
    answered = score("mbpp", data, lambda _: SUM + ENDS[chat], chat)
    assert answered.score == 1.0
    if chat:
        assert [len(prompt.messages) for prompt in answered.prompts] == [7]
    else:
        assert all(prompt.count("[DONE]") == 3 for prompt in answered.prompts)


def test_gsm8k_reports_the_last_number() -> None:
    data = [{"question": f"What is {n} and 1?", "answer": f"It is.\n#### {n + 1}"} for n in range(6)]
    benchmark = BENCHMARKS["gsm8k"]
    (task,) = (over(benchmark.text, data),)
    task = HarnessTask(task.name, {**task.changes, "training_split": None, "fewshot_split": "test"})
    model = Answers(lambda index: f"So it is {index + 1}.", has_chats=False)
    scores, metric = evaluate(model, replace(benchmark, text=task), None)
    assert metric == "exact_match,flexible-extract"
    assert scores[metric] == 1.0 and scores["exact_match,strict-match"] == 0.0
    assert all(prompt.count("Answer:") == 5 for prompt in model.prompts)


def test_all_tasks_are_in_the_harness() -> None:
    known = _task_manager().all_tasks
    tasks = [task for each in BENCHMARKS.values() for task in (each.text, each.chat) if task]
    assert not [task.name for task in tasks if task.name not in known]
