"""Lines with questions: this project's, and those of batch files for both paths of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import parse_line
from cluster.cli import app
from lopa_ray import ChoiceQuestion, LocalEngine, PredicateQuestion

torch.set_num_threads(1)

INPUT = "Tom has 6 pens."
IS_SO = {"type": "predicate", "instructions": "Is it so?", "name": "so"}
WHICH = {
    "type": "choice",
    "instructions": "Which?",
    "choices": [{"value": True}, {"value": "b"}, {"value": "c"}],
}


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.from_pretrained("demo", max_model_len=256, max_num_seqs=4)


def rows(engine: LocalEngine, *values: Any) -> list[dict[str, Any]]:
    lines = [parse_line(number, json.dumps(value).encode()) for number, value in enumerate(values, 1)]
    return [dict(result.row) for result in decode_lines(engine, lines, raw=False)]


def test_a_line_is_what_the_engine_answers(engine: LocalEngine) -> None:
    (row,) = rows(
        engine, {"input": INPUT, "questions": [IS_SO, WHICH], "id": 7, "settings": {"rotations": 2}}
    )
    wanted = engine.decide(
        INPUT, [PredicateQuestion("Is it so?"), ChoiceQuestion("Which?", [True, "b", "c"])], rotations=2
    )
    assert (row["line"], row["id"]) == (1, 7)
    predicate, choice = row["answers"]
    assert predicate["probability"] == wanted.answers[0].probability and predicate["name"] == "so"
    assert [value["probability"] for value in choice["probabilities"]] == [
        *wanted.answers[1].probabilities.values()
    ]
    assert row["usage"]["total_tokens"] > 0 and row["forwards"] == wanted.forwards


def test_lines_of_both_paths_among_others(engine: LocalEngine) -> None:
    body = {"input": INPUT, "questions": [IS_SO]}
    state = {"state": INPUT, "questions": {"so": {"type": "noul", "instructions": "Is it so?"}}}
    first, prompt, second, own = rows(
        engine,
        {"custom_id": "a", "method": "POST", "url": "/v1/decisions", "body": {"model": "m", **body}},
        {"prompt": "Tom has 3 pens and gets 4. How many?", "settings": {"max_new_tokens": 8}},
        {"custom_id": "b", "url": "/v1/systemone", "body": state},
        body,
    )
    assert first["response"]["status_code"] == 200 and first["response"]["body"]["model"] == "m"
    (answer,) = first["response"]["body"]["answers"]
    assert second["response"]["body"]["answers"]["so"]["noul"] == answer["probability"]
    assert own["answers"] == [answer] and prompt["tokens"] <= 8


def test_wrong_lines_say_why_as_a_server_would(engine: LocalEngine) -> None:
    masked = {"type": "noul", "instructions": "<|mask|>"}
    results = rows(
        engine,
        {"input": INPUT},
        {"input": INPUT, "questions": [IS_SO], "prompt": "x"},
        {"input": f"{INPUT} <|mask|>", "questions": [IS_SO]},
        {"input": INPUT, "questions": [IS_SO], "settings": {"prefix": "whole"}},
        {
            "custom_id": "a",
            "url": "/v1/decisions",
            "body": {"input": INPUT, "questions": [{**WHICH, "choices": []}]},
        },
        {"custom_id": "b", "url": "/v1/systemone", "body": {"state": INPUT, "questions": {"q": masked}}},
        {
            "custom_id": "c",
            "url": "/v1/decisions",
            "body": {"input": INPUT, "questions": [IS_SO], "lopa": {"deadline": 1}},
        },
    )
    for row, words in zip(
        results,
        ("questions is missing", "prompt is no known field", "input: got text", "prefix"),
        strict=False,
    ):
        assert words in row["error"]
    assert results[4]["response"]["body"]["error"]["param"] == "questions[0].choices"
    assert results[5]["response"]["status_code"] == 422
    assert results[5]["response"]["body"]["detail"][0]["loc"] == ["body", "questions", "q"]
    assert results[6]["response"]["body"]["error"]["param"] == "lopa.deadline"


# The command


def decide(*arguments: str, text: str | None = None) -> Any:
    return CliRunner().invoke(app, ["decide", "--local", *arguments], input=text)


@pytest.mark.medium
def test_the_command_prints_answers(tmp_path: Path) -> None:
    questions = tmp_path / "questions.json"
    questions.write_text(json.dumps([WHICH]))
    result = decide(
        INPUT, "-p", "Is it so?", "--score", "How many?|few|many", "--questions", str(questions), "--json"
    )
    assert result.exit_code == 0, result.output
    types = [answer["type"] for answer in json.loads(result.stdout)["answers"]]
    assert types == ["choice", "predicate", "score"]
    table = decide(INPUT, "--choice", "Which?|first|second")
    assert table.exit_code == 0 and "Which?" in table.stdout and "first" in table.stdout


@pytest.mark.medium
def test_questions_of_the_command_line_go_with_lines_that_have_none() -> None:
    lines = "\n".join(json.dumps(line) for line in ({"input": INPUT}, {"input": INPUT, "questions": [WHICH]}))
    result = decide("-i", "-", "-p", "Is it so?", "--rotations", "2", text=lines)
    assert result.exit_code == 0, result.output
    first, second = (json.loads(line)["answers"] for line in result.stdout.splitlines())
    assert [answer["type"] for answer in (*first, *second)] == ["predicate", "choice"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([INPUT], "questions"),
        ([INPUT, "-p", "?", "-o", "x.jsonl"], "--output needs --input"),
        ([INPUT, "-p", "?", "--workers", "2"], "exclude each other"),
        ([INPUT, "--questions", __file__], "no JSON"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    result = decide(*arguments)
    assert result.exit_code == 2 and words in result.output
