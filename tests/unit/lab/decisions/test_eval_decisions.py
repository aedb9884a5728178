"""`lopa eval decisions`: labelled questions, their report, and the settings that a checkpoint loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lopa_lab.cli.evaluation_commands import app
from lopa_lab.decisions.labels import read_labelled
from lopa_lab.decisions.report import best_report, evaluate
from lopa_ray import DecisionSettings, LocalEngine, SettingsError
from lopa_ray.decisions.defaults import read_decision_defaults
from support.paths import DATA

LABELLED = DATA / "decisions" / "labelled.jsonl"

torch.set_num_threads(1)


def test_right_values_are_read() -> None:
    first, second = read_labelled(LABELLED)
    assert first.right == (0, 1, 1, 1) and second.right == (0, 1, 1)


PREDICATE = {"type": "predicate", "instructions": "?"}
CHOICE = {"type": "choice", "instructions": "?", "choices": [{"value": "true"}, {"value": True}]}
SCORE = {"type": "score", "instructions": "?", "levels": [{"label": "a"}, {"label": "b"}]}


def test_a_text_and_a_boolean_are_two_answers(tmp_path: Path) -> None:
    file = tmp_path / "labelled.jsonl"
    questions = [{**CHOICE, "answer": True}, {**CHOICE, "answer": "true"}]
    file.write_text(json.dumps({"input": "x", "questions": questions}))
    assert read_labelled(file)[0].right == (1, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1"),
        ({"input": "x", "questions": [{**PREDICATE, "answer": "yes"}]}, "true, false"),
        ({"input": "x", "questions": [{**CHOICE, "answer": "no"}]}, "a value of the choices"),
        ({"input": "x", "questions": [{**SCORE, "answer": 2}]}, "number or label"),
        ({"input": "x", "questions": [{**SCORE, "answer": True}]}, "number or label"),
        ("", "no labelled questions"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: Any, words: str) -> None:
    file = tmp_path / "labelled.jsonl"
    file.write_text(line if isinstance(line, str) else json.dumps(line))
    with pytest.raises(SettingsError, match=words):
        read_labelled(file)


def test_what_is_right_is_counted() -> None:
    labelled = read_labelled(LABELLED)
    with LocalEngine.from_pretrained("demo", max_model_len=256) as engine:
        report = evaluate(engine, labelled, DecisionSettings(prefix="input", rotations=2))
        results = [
            engine.decide(task.task.input, task.questions, prefix="input", rotations=2) for task in labelled
        ]
    right = 0
    for task, result in zip(labelled, results, strict=True):
        for orders, wanted in zip(result.log_likelihoods, task.right, strict=True):
            averaged = [
                sum(torch.tensor(order).softmax(0)[at].item() for order in orders)
                for at in range(len(orders[0]))
            ]
            right += averaged.index(max(averaged)) == wanted
    assert report.accuracy == pytest.approx(right / 7)
    assert {kind.type: kind.plain.count for kind in report.types} == {"predicate": 3, "choice": 2, "score": 2}
    assert [kind.order_changes is None for kind in report.types] == [True, False, True]
    assert best_report([report, report]) is report


@pytest.mark.medium
def test_the_command_writes_what_a_checkpoint_loads(tmp_path: Path) -> None:
    output, plot = tmp_path / "decisions.json", tmp_path / "plot.svg"
    options = ["--local", "--prefix", "joint,input", "-o", str(output), "--plot", str(plot)]
    result = CliRunner().invoke(app, ["decisions", str(LABELLED), *options])
    assert result.exit_code == 0, result.output
    assert "prefix joint" in result.output and "prefix input" in result.output
    settings, temperatures = read_decision_defaults(tmp_path)
    assert settings.prefix in ("joint", "input") and temperatures["predicate"] > 0
    assert plot.read_text().startswith("<svg")


def test_wrong_usage(tmp_path: Path) -> None:
    for arguments, words in (
        ([str(tmp_path / "none.jsonl")], "none.jsonl"),
        ([str(LABELLED), "--local", "--prefix", "whole"], "prefix"),
        ([str(LABELLED), "--local", "--workers", "2"], "exclude each other"),
    ):
        result = CliRunner().invoke(app, ["decisions", *arguments])
        assert result.exit_code == 2 and words in result.output
