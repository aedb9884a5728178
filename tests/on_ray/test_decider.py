"""Typed questions as a step of a Ray Data pipeline."""

from __future__ import annotations

import json
from typing import Any

import pyarrow
import pytest
import ray.data
import torch

from cluster.jobs import LopaDecider
from lopa_ray import ChoiceQuestion, Config, LocalEngine, PredicateQuestion, ScoreQuestion

pytestmark = pytest.mark.slow

QUESTIONS = [
    {"type": "predicate", "name": "more", "instructions": "Does Mia have more?"},
    {"type": "choice", "name": "who", "instructions": "Who?", "choices": [{"value": "Tom"}, {"value": True}]},
    {
        "type": "score",
        "name": "many",
        "instructions": "How many?",
        "levels": [{"label": "few"}, {"label": "many"}],
    },
]
OVERRIDES = {"group": {"num_workers": 1, "num_cpus": 0.5}, "model": {"max_model_len": 256}}
INPUTS = [f"Tom has {number} pens, and Mia has 9." for number in range(5)]
ADDED = ["more", "who", "who_confidence", "many", "many_confidence", "answers", "error"]


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    torch.set_num_threads(1)
    return LocalEngine.from_config(Config.load("demo", OVERRIDES))


@pytest.fixture(scope="module")
def decider() -> LopaDecider:
    return LopaDecider(QUESTIONS, overrides=OVERRIDES)


def expected(engine: LocalEngine, given: Any) -> tuple[float, float]:
    """Main values of the first and the last answer to an input alone."""
    questions = [PredicateQuestion("Does Mia have more?"), ChoiceQuestion("Who?", ["Tom", True])]
    more, _, many = engine.decide(given, [*questions, ScoreQuestion("How many?", ["few", "many"])]).answers
    return more.probability, many.score


def test_rows_get_columns(engine: LocalEngine, decider: LopaDecider) -> None:
    chat = [{"role": "user", "content": INPUTS[0]}]
    table = decider({"id": [1, 2], "input": INPUTS[:2]})
    assert table.column_names == ["id", "input", *ADDED]
    for row in table.to_pylist():
        assert (row["more"], row["many"]) == expected(engine, row["input"])
        assert row["who"] in ("Tom", "true") and 0 <= row["who_confidence"] <= 1 and row["error"] is None
        assert [answer["name"] for answer in json.loads(row["answers"])] == ["more", "who", "many"]
    chats = decider(pyarrow.table({"input": [chat]})).to_pylist()
    assert chats[0]["more"] == table.to_pylist()[0]["more"]


@pytest.mark.nightly
def test_a_dataset(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.data.DataContext.get_current(), "enable_progress_bars", False)
    constructor = {"questions": QUESTIONS, "overrides": OVERRIDES}
    decided = ray.data.from_items([{"input": given} for given in INPUTS], override_num_blocks=2).map_batches(
        LopaDecider, fn_constructor_kwargs=constructor, batch_size=3, concurrency=2, num_cpus=0.5
    )
    rows = decided.take_all()
    assert {row["input"] for row in rows} == set(INPUTS)
    for row in rows:
        assert (row["more"], row["many"]) == expected(engine, row["input"])
