"""The paper's benchmarks, as tasks of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CODE_VARIABLE = "HF_ALLOW_CODE_EVAL"
"""The variable that, as 1, makes the harness execute what models wrote."""


@dataclass(frozen=True, slots=True)
class HarnessTask:
    """A task or group of the harness, with changes of its definition."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> str | dict[str, Any]:
        """The argument for `simple_evaluate`, which changes registered tasks as members of a group only."""
        return (
            {"group": "paper", "task": [{"task": self.name, **self.changes}]} if self.changes else self.name
        )


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark of the paper."""

    title: str
    """The paper's name of it."""
    shots: int
    """Solved examples before each problem (Table 5)."""
    metric: str
    """The harness's name of the score, with its filter where the task has several."""
    text: HarnessTask
    """The task with prompts in plain text."""
    chat: HarnessTask | None
    """The task with chats; None: every checkpoint gets plain text."""
    runs_code: bool = False
    """Whether grading executes what the model wrote."""


_GSM8K, _MATH, _WORDS = HarnessTask("gsm8k"), HarnessTask("minerva_math"), HarnessTask("word_problems")
_FENCED = {"generation_kwargs": {"until": ["```"]}, "filter_list": None}
"""Answers of chats begin in a block of code. The harness's filter takes their first word for its language."""

_PLUS = {"dataset_path": "evalplus/humanevalplus"}
_PLUS_TESTS = {"doc_to_target": "{{test}}"}
"""The harness tests MBPP+ with the assertions of MBPP alone; this column has EvalPlus's."""

BENCHMARKS = {
    # Of GSM8K's two scores the paper does not say which one it reports.
    "gsm8k": Benchmark("GSM8K", 4, "exact_match,flexible-extract", _GSM8K, _GSM8K),
    "math": Benchmark("MATH", 4, "exact_match", _MATH, _MATH),
    # The paper's authors ask for plain completion.
    "humaneval": Benchmark("HumanEval", 0, "pass@1", HarnessTask("humaneval"), None, runs_code=True),
    "mbpp": Benchmark(
        "MBPP", 3, "pass_at_1", HarnessTask("mbpp"), HarnessTask("mbpp_instruct", _FENCED), runs_code=True
    ),
    "humaneval_plus": Benchmark(
        "HumanEval+",
        0,
        "pass@1",
        HarnessTask("humaneval_plus"),
        HarnessTask("humaneval_instruct", _PLUS),
        runs_code=True,
    ),
    "mbpp_plus": Benchmark(
        "MBPP+",
        0,
        "pass_at_1",
        HarnessTask("mbpp_plus", _PLUS_TESTS),
        HarnessTask("mbpp_plus_instruct", {**_FENCED, **_PLUS_TESTS}),
        runs_code=True,
    ),
    # Not the paper's: the problems that the model in the package solves.
    "word_problems": Benchmark("word problems", 0, "exact_match", _WORDS, _WORDS),
}
"""Benchmarks by the names of `published.json`, with a stand-in."""
