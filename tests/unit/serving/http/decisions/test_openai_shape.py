"""/v1/decisions: answers, limits and errors in the shape of OpenAI's client."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from lopa_ray.decisions.questions import ChoiceQuestion, Option, PredicateQuestion, ScoreQuestion, field_error
from lopa_ray.errors import OverloadedError, PromptTooLongError
from support.decision_requests import IS_URGENT, decide, deep
from support.fake_backend import MODEL, Server, error_of

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
        {"type": "function_call_output", "call_id": "1", "output": None},
        {"role": "assistant", "content": None},
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
        ("tool", ""),
        ("assistant", ""),
    ]
    assert message.input[2]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"a": 1}}
    assert message.questions == (PredicateQuestion('[{"q": 1}]'),)


def test_settings_go_along(server: Server, client: httpx.Client) -> None:
    options = {"prefix": "joint", "rotations": 3, "deadline": 5.0}
    assert decide(client, IS_URGENT, lopa=options, priority=2).status_code == 200
    ((_, message),) = server.backend.decisions
    assert message.settings == {"prefix": "joint", "rotations": 3}
    assert (message.deadline_s, message.priority) == (5.0, 2)


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
        ([{**KIND, "choices": [{"value": "a"}, {"value": "a"}]}], {}, "questions[0].choices[1]"),
        ([{**KIND, "choices": [{"value": 1}, {"value": 2}]}], {}, None),
        ([with_json(deep(33))], {}, "questions[0].instructions[0].data"),
        ([with_json({"a": [0] * 10_000})], {}, "questions[0].instructions[0].data"),
        ([with_json({"a": "x" * 2**18})], {}, "questions[0].instructions[0].data"),
        ([{**IS_URGENT, "instructions": [IMAGE]}], {}, "questions[0].instructions[0].image_url"),
        ([IS_URGENT], {"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].image_url"),
        (
            [IS_URGENT],
            {"input": [{"type": "function_call_output", "call_id": "7", "output": "x"}]},
            "input[0].call_id",
        ),
        ([IS_URGENT], {"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
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
