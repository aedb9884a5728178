"""Decoding as a step of a Ray Data pipeline."""

from __future__ import annotations

import json
from typing import Any

import pyarrow
import pytest
import ray.data

from cluster.batch.result_format import result_as_dict
from cluster.jobs import LopaPredictor
from cluster.jobs.predictor import RESULT_TYPES
from lopa_lab.word_problems import held_out_problems
from lopa_ray import Config, LocalEngine, SettingsError
from lopa_ray.decoding.decoders import override_settings

pytestmark = pytest.mark.slow

PROBLEMS = [problem.question for problem in held_out_problems(seed=3, count=5)]
OVERRIDES = {"group": {"num_workers": 1, "num_cpus": 0.5}, "decode": {"max_new_tokens": 48}}
ONE_WORKER: dict[str, Any] = {"config": "demo", "overrides": OVERRIDES}
TIMES = {"tps", "seconds"}


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.from_config(Config.load("demo", OVERRIDES))


def expected(engine: LocalEngine, prompt: Any, **settings: Any) -> dict[str, Any]:
    """The results of a row that is decoded alone; times left out."""
    wanted = override_settings(engine.config.decode, settings)
    session = engine.create_session(prompt, wanted)
    ((_, result),) = engine.run([session])
    row = {"trajectory": None} | result_as_dict(result, wanted) | {"error": None}
    return {name: value for name, value in row.items() if name not in TIMES} | {
        "num_branches": str(row["num_branches"]),
        "trajectory": row["trajectory"] and json.dumps(row["trajectory"]),
    }


def results(row: dict[str, Any]) -> dict[str, Any]:
    """What a row has of a result, times left out."""
    return {name: row[name] for name in RESULT_TYPES.keys() - TIMES}


@pytest.mark.nightly
def test_a_dataset(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.data.DataContext.get_current(), "enable_progress_bars", False)
    rows = [
        {"id": f"row {at}", "prompt": problem, "settings": {"num_branches": 2}}
        for at, problem in enumerate(PROBLEMS)
    ]
    rows[1]["settings"] = {"seed": 5}
    rows[3]["prompt"] = too_long = "pens " * 2000
    decoded = ray.data.from_items(rows, override_num_blocks=2).map_batches(
        LopaPredictor, fn_constructor_kwargs=ONE_WORKER, batch_size=3, concurrency=2, num_cpus=0.5
    )
    row_of = {row["id"]: row for row in decoded.take_all()}
    assert row_of.keys() == {row["id"] for row in rows}
    for row in rows:
        assert row_of[row["id"]]["prompt"] == row["prompt"]
        if row["prompt"] != too_long:
            assert results(row_of[row["id"]]) == expected(engine, row["prompt"], **row["settings"])
    failed = results(row_of["row 3"])
    assert "exceed max_model_len" in failed.pop("error") and set(failed.values()) == {None}


@pytest.fixture(scope="module")
def predictor() -> LopaPredictor:
    return LopaPredictor(**ONE_WORKER)


def test_messages_and_token_ids(engine: LocalEngine, predictor: LopaPredictor) -> None:
    """In one table, where each row has nulls for what it does not have."""
    messages = [{"role": "user", "content": PROBLEMS[0]}]
    ids = engine.encode(PROBLEMS[1])
    rows = [
        {"messages": messages},
        {"prompt": PROBLEMS[2], "settings": {"trajectory": True}},
        {},
        {"messages": messages, "prompt": PROBLEMS[0]},
    ]
    table = predictor(
        pyarrow.Table.from_pylist(
            [{"messages": None, "prompt": None, "settings": None, **row} for row in rows]
        )
    )
    whole, raw, none, two = table.to_pylist()
    assert results(whole) == expected(engine, messages)
    assert results(raw) == expected(engine, PROBLEMS[2], trajectory=True)
    assert json.loads(raw["trajectory"])["token_ids"] == raw["token_ids"]
    assert "give exactly one of" in none["error"] and "got prompt and messages" in two["error"]
    named = LopaPredictor(**ONE_WORKER, output_prefix="answer_")
    for batch in ([ids, ids[:-1]], [ids, ids[1:] + ids[:1]]):  # the second one is a tensor to Ray Data
        rows = named({"token_ids": batch}).to_pylist()
        assert [list(row["token_ids"]) for row in rows] == batch
        assert rows[0]["answer_token_ids"] == expected(engine, ids)["token_ids"]
        assert rows[0]["answer_error"] is None


def test_columns_have_the_same_types_in_every_batch(predictor: LopaPredictor) -> None:
    schemas = [predictor({"prompt": [prompt]}).schema for prompt in ("pens " * 2000, PROBLEMS[0])]
    assert schemas[0] == schemas[1]
    assert schemas[0].names == ["prompt", *RESULT_TYPES]


def test_what_is_refused(predictor: LopaPredictor) -> None:
    for batch, message in (
        ({"question": ["x"]}, "got the columns question; needed: one of prompt, messages, token_ids"),
        ({"prompt": ["x"], "text": ["y"]}, "got a column 'text', .* set output_prefix"),
        ({"token_ids": [[1]]}, "got a column 'token_ids'"),
        ([{"prompt": "x"}], "got a batch of type list"),
    ):
        with pytest.raises(SettingsError, match=message):
            predictor(batch)


@pytest.mark.nightly
def test_a_group_of_several_workers(engine: LocalEngine) -> None:
    group = LopaPredictor("demo", {**OVERRIDES, "group": {"num_workers": 2, "num_cpus": 0.5}})
    (row,) = group({"prompt": [PROBLEMS[0]]}).to_pylist()
    assert results(row) == expected(engine, PROBLEMS[0])


def test_a_group_reserves_its_accelerators_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an actor that has one of its own."""
    context = type(ray.get_runtime_context())
    monkeypatch.setattr(context, "get_accelerator_ids", lambda _: {"GPU": ["0"], "NPU": []})
    with pytest.raises(SettingsError, match="leave num_gpus out there"):
        LopaPredictor("d2f-dream-7b", {"group": {"num_workers": 4}, "model": {"path": "demo", "lora": None}})
