"""/v1/systemone: answers, limits and errors in the shape of TypeSafe's client."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from lopa_ray.decisions.questions import ChoiceQuestion, Option, PredicateQuestion, ScoreQuestion, field_error
from support.decision_requests import NOUL, SYSTEM_ONE, TYPESAFE, ask, deep
from support.fake_backend import MODEL, Server


def test_answers_by_name(server: Server, client: httpx.Client) -> None:
    questions = {
        "billing": {"type": "noul", "instructions": "Is it about billing?"},
        "spam": {"type": "noul", "criteria": {"true": "advertising", "false": {"a": 1}}},
        "tone": {"type": "choice", "criteria": {"calm": None, "angry": "hostile"}},
        "urgency": {"type": "score", "instructions": {"task": "rate"}, "criteria": ["later", ["now"]]},
    }
    response = ask(client, questions, state={"text": "é"})
    assert response.status_code == 200, response.text
    assert response.headers["x-typesafe-request-id"] == response.headers["x-request-id"]
    third, rest = pytest.approx(1 / 3), pytest.approx(2 / 3)
    assert response.json() == {
        "model": MODEL,
        "answers": {
            "billing": {"type": "noul", "noul": third},
            "spam": {"type": "noul", "noul": third},
            "tone": {
                "type": "choice",
                "choice": "angry",
                "confidence": third,
                "probabilities": {"calm": third, "angry": rest},
            },
            "urgency": {
                "type": "score",
                "score": rest,
                "confidence": third,
                "legend": {"0": "later", "1": ["now"]},
                "probabilities": {"0": third, "1": rest},
            },
        },
        "usage": {"input_tokens": 20, "output_tokens": 4},
    }
    ((_, message),) = server.backend.decisions
    assert message.input == '{"text": "é"}'
    assert message.questions == (
        PredicateQuestion("Is it about billing?", "billing"),
        PredicateQuestion(None, "spam", "advertising", '{"a": 1}'),
        ChoiceQuestion(None, [Option("calm"), Option("angry", "hostile")], "tone"),
        ScoreQuestion('{"task": "rate"}', ["later", '["now"]'], "urgency"),
    )


@pytest.mark.parametrize(
    ("questions", "fields", "location"),
    [
        ({}, {}, ["questions"]),
        ({"a": {"type": "noul"}}, {}, ["questions", "a", "instructions"]),
        (
            {"a": NOUL, "b.c": {"type": "score", "criteria": ["x", "x"]}},
            {},
            ["questions", "b.c", "criteria", 1],
        ),
        ({"b": {"type": "score", "criteria": ["x", deep(33)]}}, {}, ["questions", "b", "criteria", 1]),
        ({"a": {"type": "box", "instructions": "dog"}}, {}, ["questions", "a", "type"]),
        ({"a": {"type": "text"}}, {}, ["questions", "a"]),
        ({"a": NOUL}, {"assets": {"x": {"type": "image"}}}, ["assets"]),
        ({"a": NOUL}, {"state": 3}, ["state"]),
        ({"a": NOUL}, {"other": 1}, ["other"]),
    ],
)
def test_errors_have_the_location(
    server: Server, client: httpx.Client, questions: Any, fields: Any, location: list[Any]
) -> None:
    response = ask(client, questions, **fields)
    assert response.status_code == 422, response.text
    ((detail,),) = [response.json()["detail"]]
    assert detail["loc"] == ["body", *location]
    assert detail["msg"] and detail["type"] and not server.backend.decisions


def test_errors_of_the_group_name_the_question(server: Server, client: httpx.Client) -> None:
    server.backend.rejection = field_error("questions[1]", "got text with the mask token; remove it")
    response = ask(client, {"a": NOUL, "b": NOUL})
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "questions", "b"]
    server.backend.rejection = field_error("input", "got text with the mask token; remove it")
    assert ask(client, {"a": NOUL}).json()["detail"][0]["loc"] == ["body", "state"]


def test_no_json_and_images_are_422(client: httpx.Client) -> None:
    response = client.post(SYSTEM_ONE, content=b"{", headers={"content-type": "application/json"})
    assert response.status_code == 422 and response.json()["detail"][0]["loc"] == ["body"]
    response = client.post(SYSTEM_ONE, files={"request": b"{}"})
    assert response.status_code == 422 and response.json()["detail"][0]["loc"] == ["body", "assets"]


def test_one_level_and_one_choice_are_answered(client: httpx.Client) -> None:
    answers = ask(
        client,
        {"a": {"type": "score", "criteria": ["x"]}, "b": {"type": "choice", "criteria": {"x": None}}},
    ).json()["answers"]
    assert answers["a"]["score"] == 0.0 and answers["a"]["confidence"] == 1.0
    assert answers["b"]["probabilities"] == {"x": 1.0}


def test_the_list_of_models_has_the_shape_of_who_asks(client: httpx.Client) -> None:
    models = client.get("/v1/models", headers=TYPESAFE).json()["models"]
    assert [set(model) for model in models] == [{"name", "description", "release_date"}] * 2
    assert models[0]["name"] == MODEL and time.strptime(models[0]["release_date"], "%Y-%m-%d")
    assert client.get("/v1/models").json()["data"][0]["id"] == MODEL
