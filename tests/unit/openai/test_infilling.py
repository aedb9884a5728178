"""`suffix` and `given_parts` over HTTP, answered by an engine in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from lopa_ray.engine.local import LocalEngine
from support.fake_backend import CHAT, HI, MODEL, TEXT, Server, error_of, serving
from support.local_backend import LocalBackend

pytestmark = pytest.mark.medium

PROMPT = "Tom has 3 pens. He buys 4 pens."
SUFFIX = " So the answer is 7."
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def server(engine: LocalEngine) -> Iterator[Server]:
    with serving(LocalBackend(engine=engine)) as running:
        yield running


def post(client: httpx.Client, path: str = TEXT, **fields: Any) -> Any:
    ask = {"messages": HI} if path == CHAT else {"prompt": PROMPT}
    response = client.post(path, json={"model": MODEL, **ask, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_completion_before_a_suffix_is_the_hole_alone(client: httpx.Client, engine: LocalEngine) -> None:
    answer = post(client, suffix=SUFFIX, max_tokens=MAX_TOKENS)
    result = engine.generate(PROMPT, raw=True, suffix=SUFFIX, max_new_tokens=MAX_TOKENS)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (result.text, result.finish_reason)
    assert choice["lopa"]["tokens"] == result.tokens <= MAX_TOKENS
    assert choice["lopa"]["tpf"] == pytest.approx(result.tpf)
    assert answer["usage"] == {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.tokens,
        "total_tokens": result.prompt_tokens + result.tokens,
    }
    assert (
        post(client, suffix=SUFFIX)["choices"][0]["text"] is not None
    )  # as many tokens as the model's default


def test_it_streams_the_hole_as_it_becomes_final(server: Server, client: httpx.Client) -> None:
    whole = post(client, suffix=SUFFIX, max_tokens=MAX_TOKENS)["choices"][0]
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as ai:
        stream = ai.completions.create(
            model=MODEL,
            prompt=PROMPT,
            suffix=SUFFIX,
            max_tokens=MAX_TOKENS,
            stream=True,
            extra_body={"lopa": {"stream_canvas": True}},
        )
        chunks = list(stream)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == whole["text"]
    assert choices[-1].finish_reason == whole["finish_reason"]
    # Given tokens are in each canvas, and no step has decided them.
    extras = [chunk.model_extra or {} for chunk in chunks if not chunk.choices]
    canvases = [extra["lopa"]["canvas"]["cells"] for extra in extras]
    assert canvases
    for cells in canvases:
        behind = cells[MAX_TOKENS:]
        assert "".join(cell["t"] for cell in behind) == SUFFIX and not any(cell["s"] for cell in behind)


def test_echo_several_choices_stops_and_logprobs(client: httpx.Client) -> None:
    fields: dict[str, Any] = {"suffix": SUFFIX, "max_tokens": MAX_TOKENS}
    text = post(client, **fields)["choices"][0]["text"]
    assert post(client, echo=True, **fields)["choices"][0]["text"] == PROMPT + text
    several = post(client, n=2, temperature=1.0, seed=3, **fields)["choices"]
    assert [choice["index"] for choice in several] == [0, 1]
    assert several[1]["text"] == post(client, temperature=1.0, seed=4, **fields)["choices"][0]["text"]
    stop = text[len(text) // 2]
    stopped = post(client, stop=stop, **fields)["choices"][0]
    assert (stopped["text"], stopped["finish_reason"]) == (text[: text.index(stop)], "stop")
    logprobs = post(client, logprobs=1, **fields)["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == text and len(logprobs["tokens"]) == len(logprobs["token_logprobs"])
    # What stands in the suffix stops nothing.
    assert post(client, stop="So the", **fields)["choices"][0]["text"] == text


def test_parts_of_a_chat_are_given(client: httpx.Client) -> None:
    parts = [{"text": "Tom"}, {"hole": 8, "text": " pens."}]
    answer = post(client, CHAT, given_parts=parts, max_completion_tokens=40)
    choice = answer["choices"][0]
    content = choice["message"]["content"]
    assert content.startswith("Tom") and " pens." in content
    response = client.post(
        CHAT, json={"model": MODEL, "messages": HI, "given_parts": parts, "max_tokens": 40, "stream": True}
    )
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == content
    given = post(
        client, CHAT, given_parts=parts, max_completion_tokens=40, guided_regex=r"Tom[^T]* pens\.\s*"
    )
    assert given["choices"][0]["message"]["content"].startswith("Tom")


@pytest.mark.parametrize(
    ("path", "fields", "param", "said"),
    [
        (TEXT, {"suffix": "a b " * 2000}, "suffix", "exceed max_model_len"),
        (TEXT, {"given_parts": [{"at": 9, "text": "x"}], "max_tokens": 9}, "given_parts", "max_tokens is 9"),
        (CHAT, {"given_parts": [{"text": "a b"}, {"at": 0, "text": "x"}]}, "given_parts", "part 1 begins"),
        (CHAT, {"suffix": "x"}, "suffix", "suffix"),
        (TEXT, {"suffix": "x", "guided_regex": "[0-9]"}, "suffix", "no answer with what is given matches"),
        (TEXT, {"suffix": "x", "min_tokens": 9, "max_tokens": 8}, "min_tokens", "exceeds max_tokens (8)"),
        (TEXT, {"lopa": {"suffix": "x"}}, "lopa.suffix", "outside of lopa"),
    ],
)
def test_what_cannot_be_given_names_the_field(
    client: httpx.Client, path: str, fields: dict[str, Any], param: str, said: str
) -> None:
    ask = {"messages": HI} if path == CHAT else {"prompt": PROMPT}
    error = error_of(client.post(path, json={"model": MODEL, **ask, **fields}), 400)
    assert error.param == param and said in error.message
