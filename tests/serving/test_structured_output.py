"""Structured output from a server: through OpenAI's client, the same as in this process, and refused with a reason."""

from __future__ import annotations

from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel

from lopa_ray.engine.local import LocalEngine
from support.client_request import PROMPT
from support.server_process import ServerProcess

REGEX = r"[A-Z][a-z]+ has \d\*\d=\d\d pens\.\n#### \d\d?"


class Line(BaseModel):
    """What OpenAI's client makes a strict schema of, references and all."""

    item: Literal["pens", "books"]
    count: int
    note: str | None


class Basket(BaseModel):
    owner: str
    lines: list[Line]


def test_openais_client_parses_the_answer(server: ServerProcess) -> None:
    with server.openai(max_retries=0) as ai:
        reply = ai.chat.completions.parse(
            model="demo",
            messages=[{"role": "user", "content": PROMPT}],
            response_format=Basket,
            max_tokens=64,
        )
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(reply.choices[0].message.parsed, Basket)


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"guided_regex": REGEX}, {"guided_regex": REGEX}),
        ({"guided_choice": ["12", "twelve"]}, {"guided_choice": ["12", "twelve"]}),
        ({"response_format": {"type": "json_object"}}, {"guided_json": {"type": "object"}}),
    ],
)
@pytest.mark.parametrize("model", ["demo", "demo-d2f"])
def test_a_server_says_what_the_local_engine_says(
    client: httpx.Client, engines: dict[str, LocalEngine], model: str, fields: Any, settings: Any
) -> None:
    engine = engines[model]
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": model, "messages": messages, "max_tokens": 48, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    alone = engine.generate(PROMPT, engine.config.decode.replace(max_new_tokens=48, **settings))
    assert response.json()["choices"][0]["message"]["content"] == alone.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"guided_json": {"contains": {}, "maxContains": 2}}, "keyword maxContains is not supported"),
        ({"guided_regex": "a(?=b)"}, "look-around"),
        ({"guided_choice": ["a very long answer to a simple question"]}, "raise it to"),
        ({"guided_regex": "a", "ignore_eos": True}, "leave ignore_eos out"),
        ({"guided_regex": "[ab]*a[ab]{30}"}, "too large"),
    ],
)
def test_what_cannot_be_kept_is_a_400(client: httpx.Client, fields: Any, message: str) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
