"""TypeSafe's own client, which compresses its requests and asks for models in a shape of its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Choice,
    Noul,
    RetryPolicy,
    Score,
    TypeSafeAuthenticationError,
    TypeSafeClient,
    TypeSafeNotFoundError,
    TypeSafeUnprocessableEntityError,
)

from lopa_ray import LocalEngine, PredicateQuestion
from support.server_process import ServerProcess

pytestmark = pytest.mark.clients

STATE = "Tom has 6 pens, and Mia has 9 pens."
QUESTIONS: Any = {
    "more": Noul(instructions="Does Mia have more pens than Tom?"),
    "spam": Noul(criteria={"true": "advertising"}),
    "who": Choice(instructions="Who has the most pens?", criteria={"Tom": None, "Mia": {"she": "has 9"}}),
    "many": Score(instructions="How many pens does Tom have?", criteria=["few", "some", ["a", "lot"]]),
}


class Recorder(httpx2.HTTPTransport):
    """Keeps the requests that it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[httpx2.Request] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return super().handle_request(request)


def client_of(server: ServerProcess, **options: Any) -> TypeSafeClient:
    options = {"api_key": server.api_key, "base_url": server.url, "model": "demo", **options}
    return TypeSafeClient(retry=RetryPolicy(max_retries=0), timeout=60, **options)


def test_answers_by_name(server: ServerProcess) -> None:
    with client_of(server) as client:
        result = client.system_one(state=STATE, questions=QUESTIONS)
    assert result.request_id and result.model == "demo"
    assert 0 < result.nouls["more"].noul < 1 and 0 < result.nouls["spam"].noul < 1
    who, many = result.choices["who"], result.scores["many"]
    assert set(who.probabilities) == {"Tom", "Mia"} and who.choice in who.probabilities
    assert sum(who.probabilities.values()) == pytest.approx(1)
    assert many.score == pytest.approx(sum(int(level) * p for level, p in many.probabilities.items()))
    assert 0 <= many.confidence <= 1 and result.usage.input_tokens > 0


def test_it_is_what_one_process_computes(server: ServerProcess) -> None:
    with LocalEngine.from_pretrained("demo") as engine:
        here = engine.decide(STATE, [PredicateQuestion("Does Mia have more pens than Tom?")])
    with client_of(server) as client:
        there = client.system_one(state=STATE, questions={"more": QUESTIONS["more"]})
    assert there.nouls["more"].noul == here.answers[0].probability


def test_long_requests_come_in_zstd(server: ServerProcess) -> None:
    recorder = Recorder()
    questions = {f"q{at}": Noul(instructions=f"Does Mia have more than {at} pens?") for at in range(100)}
    with client_of(server, transport=recorder) as client:
        compressed = client.system_one(state={"text": STATE}, questions=questions)
    with client_of(server, compression=False) as client:
        plain = client.system_one(state={"text": STATE}, questions=questions)
    assert recorder.requests[0].headers["content-encoding"] == "zstd"
    assert compressed.answers == plain.answers and len(plain.answers) == 100


def test_the_list_of_models_is_told_by_the_header(server: ServerProcess) -> None:
    recorder = Recorder()
    with client_of(server, transport=recorder) as client:
        (model,) = client.models.list().models
    assert model.name == "demo" and model.description and model.release_date
    assert "x-typesafe-sdk" in recorder.requests[0].headers


def test_errors_are_422_with_locations(server: ServerProcess) -> None:
    wrong: Any = [
        ({"state": f"{STATE} <|mask|>", "questions": QUESTIONS}, ["body", "state"]),
        ({"state": STATE, "questions": {"a": QUESTIONS["more"], "b": Noul(instructions="<|mask|>?")}}, None),
        ({"state": "pens " * 3000, "questions": QUESTIONS}, ["body", "state"]),
        ({"state": STATE, "questions": QUESTIONS, "extra_body": {"questions": {}}}, ["body", "questions"]),
    ]
    with client_of(server) as client:
        for arguments, location in wrong:
            with pytest.raises(TypeSafeUnprocessableEntityError) as raised:
                client.system_one(**arguments)
            body: Any = raised.value.body
            assert body["detail"][0]["loc"] == (location or ["body", "questions", "b"]), json.dumps(body)
            assert body["detail"][0]["msg"] in str(raised.value)
        with pytest.raises(TypeSafeNotFoundError):
            client.system_one(state=STATE, questions=QUESTIONS, model="other")
    with client_of(server, api_key="wrong") as client, pytest.raises(TypeSafeAuthenticationError):
        client.system_one(state=STATE, questions=QUESTIONS)


def test_the_asynchronous_client(server: ServerProcess) -> None:
    async def ask() -> list[Any]:
        async with AsyncTypeSafeClient(
            api_key=server.api_key, base_url=server.url, model="demo", timeout=60
        ) as client:
            return await asyncio.gather(
                *(client.system_one(state=STATE, questions=QUESTIONS) for _ in range(8))
            )

    results = asyncio.run(ask())
    assert all(result.answers == results[0].answers for result in results)
