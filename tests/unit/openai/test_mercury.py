"""Mercury's API: fill in the middle, streams whose texts replace each other, and its word for no reasoning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from lopa_ray.engine.local import LocalEngine
from support.fake_backend import CHAT, HI, MODEL, TEXT, Server, error_of, serving
from support.local_backend import LocalBackend

pytestmark = pytest.mark.medium

FIM = "/v1/fim/completions"
PROBLEM = "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": PROBLEM}], "max_tokens": 64}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server(engine: LocalEngine) -> Iterator[Server]:
    with serving(LocalBackend(engine=engine)) as running:
        yield running


def post(client: httpx.Client, path: str, **fields: Any) -> httpx.Response:
    response = client.post(path, json={**ASK, **fields} if path == CHAT else {"model": MODEL, **fields})
    assert response.status_code == 200, response.text
    return response


def chunks(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    text = post(client, CHAT, stream=True, diffusing=True, **fields).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    return [choice for event in events for choice in event["choices"]]


def texts(choices: list[dict[str, Any]], index: int = 0) -> list[str]:
    deltas = [choice["delta"] for choice in choices if choice["index"] == index]
    return [delta["content"] for delta in deltas if delta.get("content") is not None]


def test_fill_in_the_middle_is_a_completion_before_a_suffix(client: httpx.Client) -> None:
    body = {"prompt": "Tom has 3 pens. He buys 4 pens.", "suffix": " So the answer is 7.", "max_tokens": 24}
    answer, same = post(client, FIM, **body).json(), post(client, TEXT, **body).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == same["choices"][0]["text"]
    stream = post(client, FIM, **body, stream=True).text.split("\n\n")[:-2]
    parts = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in stream]
    assert len(parts) > 1 and "".join(parts) == answer["choices"][0]["text"]
    del body["suffix"]
    assert (
        post(client, FIM, **body).json()["choices"][0]["text"]
        == post(client, TEXT, **body).json()["choices"][0]["text"]
    )
    for path in ("/v1/apply/completions", "/v1/edit/completions"):
        assert client.post(path, json={"model": MODEL, **body}).status_code == 404


@pytest.mark.parametrize("lopa", [{}, {"decoder": "vanilla"}, {"decoder": "editing", "block_size": 16}])
def test_each_text_is_whole_and_the_last_is_the_answer(client: httpx.Client, lopa: dict[str, Any]) -> None:
    plain = post(client, CHAT, lopa=lopa).json()["choices"][0]["message"]["content"]
    choices = chunks(client, lopa=lopa)
    shown = texts(choices)
    assert shown[0] == "" and len(shown) > 3 and shown[-1] == plain
    assert all(a != b for a, b in pairwise(shown))
    assert any(not plain.startswith(text) for text in shown)  # not in the order of the text
    assert choices[-1]["finish_reason"] == "stop" and choices[-1]["delta"] == {}
    # Without a stream there is one text, which is the last.
    assert post(client, CHAT, lopa=lopa, diffusing=True).json()["choices"][0]["message"]["content"] == plain


def test_choices_stops_and_structures(client: httpx.Client) -> None:
    plain = post(client, CHAT, stop=["cards"]).json()["choices"][0]
    shown = texts(chunks(client, stop=["cards"]))
    assert shown[-1] == plain["message"]["content"] and not any("cards" in text for text in shown)
    drawn = {"n": 2, "temperature": 0.8, "seed": 5}
    both = post(client, CHAT, **drawn).json()["choices"]
    choices = chunks(client, **drawn)
    assert [texts(choices, at)[-1] for at in range(2)] == [one["message"]["content"] for one in both]
    bound = {"guided_regex": r"[a-z]{3,8} \d\d"}
    matches = post(client, CHAT, **bound).json()["choices"][0]["message"]["content"]
    assert texts(chunks(client, **bound))[-1] == matches


def test_calls_arrive_as_always(client: httpx.Client) -> None:
    fields = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 64}
    (call,) = post(client, CHAT, **fields).json()["choices"][0]["message"]["tool_calls"]
    choices = chunks(client, **fields)
    deltas = [one for choice in choices for one in choice["delta"].get("tool_calls") or ()]
    assert "".join(one["function"]["arguments"] for one in deltas) == call["function"]["arguments"]
    assert deltas[0]["function"]["name"] == "look_up" and set(texts(choices)) == {""}
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_log_probabilities_have_no_place_in_texts_that_are_replaced(client: httpx.Client) -> None:
    body = {**ASK, "stream": True, "diffusing": True, "logprobs": True}
    assert error_of(client.post(CHAT, json=body), 400).param == "diffusing"


@pytest.mark.parametrize("effort", ["instant", "none"])
def test_instant_is_no_reasoning(server: Server, client: httpx.Client, effort: str) -> None:
    post(client, CHAT, messages=HI, reasoning_effort=effort, max_tokens=4, realtime=False)
    variables = server.backend.requests[-1][1].template_variables
    assert variables == {"reasoning_effort": "none", "enable_thinking": False}
    error = error_of(client.post(CHAT, json={**ASK, "reasoning_summary": True}), 400)
    assert error.param == "reasoning_summary"
