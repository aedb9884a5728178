"""/v1/decisions and /v1/systemone over a fake backend: shapes, limits, errors of both protocols."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from lopa_ray.decisions.questions import ChoiceQuestion, Option, PredicateQuestion, ScoreQuestion, field_error
from lopa_ray.errors import OverloadedError, PromptTooLongError
from support.fake_backend import MODEL, Server, error_of, serving

DECISIONS, SYSTEM_ONE = "/v1/decisions", "/v1/systemone"
IS_URGENT = {"type": "predicate", "instructions": "Is it urgent?", "name": "urgent"}
KIND = {
    "type": "choice",
    "instructions": "Which?",
    "choices": [{"value": "true"}, {"value": True, "description": "yes"}],
}
SCORE = {
    "type": "score",
    "instructions": "How?",
    "levels": [{"label": "low"}, {"label": "high", "description": "very"}],
}
TYPESAFE = {"X-TypeSafe-SDK": "typesafe-sdk/0.7.5"}


@pytest.fixture(scope="module")
def module_server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def server(module_server: Server) -> Server:
    module_server.backend.reset()
    return module_server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as opened:
        yield opened


def decide(client: httpx.Client, *questions: Any, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "I was charged twice.", "questions": list(questions), **fields}
    return client.post(DECISIONS, json=body)


def ask(client: httpx.Client, questions: Any, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "state": "I was charged twice.", "questions": questions, **fields}
    return client.post(SYSTEM_ONE, json=body, headers=TYPESAFE)


# OpenAI's shape


def test_answers_of_all_types(server: Server, client: httpx.Client) -> None:
    response = decide(client, IS_URGENT, KIND, SCORE)
    assert response.status_code == 200
    third = pytest.approx(1 / 3)
    assert response.json() == {
        "model": MODEL,
        "answers": [
            {"type": "predicate", "name": "urgent", "probability": third},
            {
                "type": "choice",
                "name": None,
                "choice": True,
                "confidence": third,
                "probabilities": [
                    {"value": "true", "probability": third},
                    {"value": True, "probability": pytest.approx(2 / 3)},
                ],
            },
            {
                "type": "score",
                "name": None,
                "score": pytest.approx(2 / 3),
                "confidence": third,
                "probabilities": [
                    {"label": "low", "value": 0, "probability": third},
                    {"label": "high", "value": 1, "probability": pytest.approx(2 / 3)},
                ],
            },
        ],
        "usage": {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 16},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 23,
        },
        "lopa": {"steps": 2, "forwards": 4, "seconds": 0.5},
    }
    ((model, message),) = server.backend.decisions
    assert model == MODEL and message.input == "I was charged twice."
    assert message.questions == (
        PredicateQuestion("Is it urgent?", "urgent"),
        ChoiceQuestion("Which?", [Option("true"), Option(True, "yes")]),
        ScoreQuestion("How?", [Option("low"), Option("high", "very")]),
    )


def test_messages_calls_and_json(server: Server, client: httpx.Client) -> None:
    items = [
        {
            "role": "developer",
            "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "brief."}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look:", "prompt_cache_breakpoint": {"mode": "explicit"}},
                {"type": "input_json", "data": {"é": [1, None]}},
                {"type": "input_text", "text": "and say."},
            ],
        },
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "1", "output": "red"},
        {"type": "custom_tool_call", "call_id": "2", "name": "see", "input": "what"},
        {
            "type": "custom_tool_call_output",
            "call_id": "2",
            "output": [{"type": "input_text", "text": "blue"}],
        },
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I"}, {"type": "refusal", "refusal": " see"}],
        },
    ]
    question = {"type": "predicate", "instructions": [{"type": "input_json", "data": [{"q": 1}]}]}
    response = decide(client, question, input=items, prompt_cache_key="k", safety_identifier="u")
    assert response.status_code == 200, response.text
    ((_, message),) = server.backend.decisions
    contents = [(given["role"], given["content"]) for given in message.input]
    assert contents == [
        ("system", "Be brief."),
        ("user", 'Look:\n{"é": [1, null]}\nand say.'),
        ("assistant", ""),
        ("tool", "red"),
        ("assistant", ""),
        ("tool", "blue"),
        ("assistant", "I see"),
    ]
    assert message.input[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"a": 1}}
    assert message.questions == (PredicateQuestion('[{"q": 1}]'),)


def test_settings_go_along(server: Server, client: httpx.Client) -> None:
    options = {"prefix": "joint", "rotations": 3, "deadline": 5.0}
    assert decide(client, IS_URGENT, lopa=options, priority=2).status_code == 200
    ((_, message),) = server.backend.decisions
    assert message.settings == {"prefix": "joint", "rotations": 3}
    assert (message.deadline_s, message.priority) == (5.0, 2)


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def with_json(data: Any) -> Any:
    return {"type": "predicate", "instructions": [{"type": "input_json", "data": data}]}


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


@pytest.mark.parametrize(
    ("questions", "fields", "param"),
    [
        ([], {}, "questions"),
        ([IS_URGENT] * 401, {}, "questions"),
        ([{"type": "box", "instructions": "?"}], {}, "questions[0]"),
        ([{"type": "predicate"}], {}, "questions[0].instructions"),
        ([IS_URGENT, {**KIND, "choices": []}], {}, "questions[1].choices"),
        ([{**KIND, "choices": [{"value": "a"}]}], {}, "questions[0].choices"),
        ([{**KIND, "choices": [{"value": str(at)} for at in range(256)]}], {}, "questions[0].choices"),
        ([{**KIND, "choices": [{"value": "a"}, {"value": "a"}]}], {}, "questions[0].choices[1]"),
        ([{**KIND, "choices": [{"value": 1}, {"value": 2}]}], {}, None),
        ([{**SCORE, "levels": [{"label": "a"}, {"label": "a"}]}], {}, "questions[0].levels[1]"),
        ([{**SCORE, "levels": []}], {}, "questions[0].levels"),
        ([with_json(deep(33))], {}, "questions[0].instructions[0].data"),
        ([with_json({"a": [0] * 10_000})], {}, "questions[0].instructions[0].data"),
        ([with_json({"a": "x" * 2**18})], {}, "questions[0].instructions[0].data"),
        ([with_json([1])], {}, "questions[0].instructions[0].data"),
        ([{**IS_URGENT, "instructions": [IMAGE]}], {}, "questions[0].instructions[0].image_url"),
        ([IS_URGENT], {"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].image_url"),
        ([IS_URGENT], {"input": []}, "input"),
        ([IS_URGENT], {"input": 3}, "input"),
        (
            [IS_URGENT],
            {"input": [{"type": "function_call_output", "call_id": "7", "output": "x"}]},
            "input[0].call_id",
        ),
        ([IS_URGENT], {"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        ([IS_URGENT], {"temperature": 1}, "temperature"),
        ([IS_URGENT], {"lopa": {"rotations": 0}}, "lopa.rotations"),
        ([IS_URGENT], {"model": "other"}, "model"),
    ],
)
def test_one_error_names_the_field(
    server: Server, client: httpx.Client, questions: Any, fields: Any, param: str | None
) -> None:
    response = decide(client, *questions, **fields)
    error = error_of(response, 404 if param == "model" else 400)
    assert error.type == "invalid_request_error"
    assert error.param == param or (param is None and error.param.startswith("questions[0].choices[0].value"))
    assert (error.param.split(".")[-1]) in error.message and not server.backend.decisions


def test_json_at_its_limits_is_read(client: httpx.Client) -> None:
    response = decide(client, with_json(deep(32)), with_json({"a": [0] * 9_990}))
    assert response.status_code == 200, response.text


def test_names_need_not_be_unique(client: httpx.Client) -> None:
    answers = decide(client, IS_URGENT, IS_URGENT).json()["answers"]
    assert [answer["name"] for answer in answers] == ["urgent", "urgent"]


def test_what_the_group_says(server: Server, client: httpx.Client) -> None:
    server.backend.rejection = field_error("questions[0]", "got text with the mask token <|mask|>; remove it")
    error = error_of(decide(client, IS_URGENT), 400)
    assert (error.code, error.param) == ("invalid_prompt", "questions[0]")
    server.backend.rejection = PromptTooLongError("400 tokens exceed max_model_len 256; shorten it")
    assert error_of(decide(client, IS_URGENT), 400).code == "context_length_exceeded"
    server.backend.rejection = OverloadedError("the queue is full; try again later")
    response = decide(client, IS_URGENT)
    assert error_of(response, 429).code == "queue_full" and response.headers["retry-after"]


# TypeSafe's shape


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


NOUL = {"type": "noul", "instructions": "?"}


@pytest.mark.parametrize(
    ("questions", "fields", "location"),
    [
        ({}, {}, ["questions"]),
        ({"a": {"type": "noul"}}, {}, ["questions", "a", "instructions"]),
        ({"a": {"type": "noul", "criteria": {"true": None}}}, {}, ["questions", "a", "instructions"]),
        ({"a": NOUL, "b": {"type": "choice", "criteria": {}}}, {}, ["questions", "b", "criteria"]),
        ({"b": {"type": "choice"}}, {}, ["questions", "b", "criteria"]),
        ({"b": {"type": "score", "criteria": []}}, {}, ["questions", "b", "criteria"]),
        (
            {"a": NOUL, "b.c": {"type": "score", "criteria": ["x", "x"]}},
            {},
            ["questions", "b.c", "criteria", 1],
        ),
        ({"b": {"type": "score", "criteria": ["x", deep(33)]}}, {}, ["questions", "b", "criteria", 1]),
        ({"a": {"type": "box", "instructions": "dog"}}, {}, ["questions", "a", "type"]),
        ({"a": {"type": "text"}}, {}, ["questions", "a"]),
        ({"a": NOUL}, {"assets": {"x": {"type": "image"}}}, ["assets"]),
        ({"a": NOUL}, {"state": None}, ["state"]),
        ({"a": NOUL}, {"state": 3}, ["state"]),
        ({"a": {**NOUL, "instructions": 3}}, {}, ["questions", "a", "instructions"]),
        ({"a": NOUL}, {"state": {"a": [0] * 10_000}}, ["state"]),
        ({"a": NOUL}, {"model": None}, ["model"]),
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


# What both share


def test_keys_and_limits_are_shared_with_other_routes() -> None:
    with serving(api_keys=["right"], requests_per_minute=2) as server:
        headers = {"Authorization": "Bearer right"}
        with httpx.Client(base_url=server.url, timeout=30, headers=headers) as client:
            for path in (DECISIONS, SYSTEM_ONE):
                assert httpx.post(f"{server.url}{path}", json={}, timeout=30).status_code == 401
            assert decide(client, IS_URGENT).status_code == 200
            assert ask(client, {"a": NOUL}).status_code == 200
            assert error_of(decide(client, IS_URGENT), 429).code == "rate_limit_exceeded"


def test_a_running_decision_is_cancelled(server: Server, client: httpx.Client) -> None:
    server.backend.hold = True
    responses: list[httpx.Response] = []

    def run() -> None:
        headers = {"X-Request-ID": "mine"}
        body = {"model": MODEL, "input": "x", "questions": [IS_URGENT]}
        responses.append(httpx.post(f"{server.url}{DECISIONS}", json=body, headers=headers, timeout=30))

    thread = threading.Thread(target=run)
    thread.start()
    while not server.backend.running:
        assert thread.is_alive()
    body = {"model": MODEL, "input": "x", "questions": [IS_URGENT]}
    again = client.post(DECISIONS, json=body, headers={"X-Request-ID": "mine"})
    assert error_of(again, 409).code == "request_id_in_use"
    assert client.delete("/v1/requests/mine").status_code == 200
    thread.join(20)
    assert error_of(responses[0], 499).code == "request_cancelled"


def test_a_client_that_leaves_ends_its_decision(server: Server) -> None:
    server.backend.hold = True
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}{DECISIONS}",
            json={"model": MODEL, "input": "x", "questions": [IS_URGENT]},
            timeout=1,
        )
    while server.backend.running:
        time.sleep(0.01)
    assert server.backend.closed


def test_a_compressed_body_is_read(server: Server, client: httpx.Client) -> None:
    body = gzip.compress(json.dumps({"model": MODEL, "input": "x", "questions": [IS_URGENT]}).encode())
    response = client.post(DECISIONS, content=body, headers={"Content-Encoding": "gzip"})
    assert response.status_code == 200, response.text
    assert len(server.backend.decisions) == 1
