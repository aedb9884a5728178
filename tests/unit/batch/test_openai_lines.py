"""OpenAI's batch files: each line answered as a server answers its body, by the command line and by jobs alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import httpx
import pytest

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import (
    LineResult,
    is_failed,
    parse_record,
)
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import WorkerLostError
from lopa_ray.protocol.events import RequestFailure
from support.fake_backend import CHAT, HI, MODEL, RESPONSES, TEXT, Server, serving
from support.local_backend import LocalBackend
from support.tool_checkpoint import write_tool_checkpoint

pytestmark = pytest.mark.medium

FUNCTION = {
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2, 3]}}, "required": ["a"]},
}
CALL: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
DRAWN = {"temperature": 1.0, "seed": 5}

GOOD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": HI, "max_tokens": 12}),
    (CHAT, {"messages": HI, "max_tokens": 24, "n": 2, **CALL, **DRAWN}),
    (
        CHAT,
        {"messages": HI, "max_tokens": 12, "logprobs": True, "top_logprobs": 1, "lopa": {"decoder": "d2f"}},
    ),
    (CHAT, {"messages": HI, "max_tokens": 20, "stop": ["a", "e", "\n"], "ignore_eos": True, **DRAWN}),
    (CHAT, {"messages": HI, "max_tokens": 12, "bad_words": ["a"], "response_format": {"type": "text"}}),
    (TEXT, {"prompt": ["one", "two"], "max_tokens": 9, "n": 2, "logprobs": 0, **DRAWN}),
    (TEXT, {"prompt": [5, 6, 7], "max_tokens": 9, "echo": True}),
    (TEXT, {"prompt": "all of it", "max_tokens": 0, "echo": True}),
    (TEXT, {"prompt": "one of", "max_tokens": 12, "guided_choice": ["yes", "no"]}),
    (
        RESPONSES,
        {
            "input": "hi",
            "max_output_tokens": 24,
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": "required",
        },
    ),
    (RESPONSES, {"input": HI, "instructions": "be brief", "max_output_tokens": 12, **DRAWN}),
    (CHAT, {"messages": HI, "max_tokens": 12, "n": 2, "trajectory": "entropies", **DRAWN}),
    (RESPONSES, {"input": HI, "max_output_tokens": 12, "trajectory": True}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": HI, "temperature": "hot"}),
    (CHAT, {"messages": HI, "max_tokens": 5000}),
    (
        CHAT,
        {
            "messages": HI,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
            "tool_choice": "required",
        },
    ),
    (CHAT, {"messages": []}),
    (TEXT, {"prompt": [9999], "max_tokens": 3}),
    (TEXT, {"prompt": "x", "lopa": {"decoder": "other"}}),
    (RESPONSES, {"input": "hi", "store": True}),
]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("model")
    write_tool_checkpoint(folder)
    model = {"path": str(folder), "max_model_len": 512}
    return Config.load("demo", {"model": model, "decode": {"max_new_tokens": 16, "num_branches": 2}})


@pytest.fixture(scope="module")
def engine(config: Config) -> LocalEngine:
    return LocalEngine.from_config(config)


@pytest.fixture(scope="module")
def server(engine: LocalEngine) -> Iterator[Server]:
    with serving(LocalBackend(engine=engine)) as running:
        yield running


def line(number: int, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return {
        "custom_id": f"mine-{number}",
        "method": "POST",
        "url": url,
        "body": {"model": MODEL, **body},
    }


def decode(engine: LocalEngine, records: list[Any]) -> list[LineResult]:
    lines = [parse_record(number, record) for number, record in enumerate(records, 1)]
    return list(decode_lines(engine, lines, raw=False))


VARYING = ("id", "call_id", "created", "created_at", "completed_at", "request_id")
TIMES = ("seconds", "queued_seconds", "phases_seconds", "tps")


def comparable(value: Any) -> Any:
    """A response without ids and times."""

    def kept(fields: dict[str, Any]) -> dict[str, Any]:
        return {key: inner for key, inner in fields.items() if key not in (*VARYING, *TIMES)}

    return json.loads(json.dumps(value), object_hook=kept)


def test_lines_are_answered_as_a_server_answers_their_bodies(server: Server, engine: LocalEngine) -> None:
    asked = [*GOOD, *BAD]
    results = decode(engine, [line(number, url, body) for number, (url, body) in enumerate(asked, 1)])
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for number, ((url, body), result) in enumerate(zip(asked, results, strict=True), 1):
            response = client.post(url, json={"model": MODEL, **body})
            row = result.row
            assert (row["id"], row["custom_id"], row["error"]) == (
                f"batch_req_{number}",
                f"mine-{number}",
                None,
            )
            assert row["response"]["status_code"] == response.status_code, response.text
            assert comparable(row["response"]["body"]) == comparable(response.json()), body
            good = number <= len(GOOD)
            assert (not result.error) == good and is_failed(row) != good
            assert (response.status_code == 200) == good


def test_a_response_is_named_by_its_line(engine: LocalEngine) -> None:
    (_, result) = decode(engine, ["own", line(2, *GOOD[0])])
    response = result.row["response"]
    assert response["request_id"] == "batch-2" and response["body"]["id"] == "chatcmpl-batch-2"
    assert not result.error
    assert result.tokens == response["body"]["usage"]["completion_tokens"] > 0
    assert result.steps >= response["body"]["lopa"]["steps"]


def test_special_tokens_in_raw_lines(engine: LocalEngine) -> None:
    text = "<|im_start|>one"
    records = [text, {"prompt": text, "parse_special": False}, {"prompt": text, "parse_special": 1}]
    lines = [parse_record(number, record) for number, record in enumerate(records, 1)]
    parsed, characters, wrong = decode_lines(engine, lines, raw=True)
    assert not parsed.error and not characters.error
    assert parsed.row["prompt_tokens"] == len(engine.encode(text, raw=True))
    assert characters.row["prompt_tokens"] == len(engine.encode(text, raw=True, parse_special=False))
    assert parsed.row["prompt_tokens"] < characters.row["prompt_tokens"]
    assert wrong.error.startswith("parse_special: got 1")


def test_a_run_has_one_model_which_need_not_be_named(engine: LocalEngine) -> None:
    body = {"messages": HI, "max_tokens": 4, "model": None}
    (result,) = decode(engine, [line(1, CHAT, body)])
    response = result.row["response"]
    assert (response["status_code"], response["body"]["model"]) == (200, str(engine.config.model.path))


def test_what_only_a_server_can_do_is_refused(engine: LocalEngine) -> None:
    records = [
        line(1, CHAT, {"messages": HI, "stream": True}),
        line(2, CHAT, {"messages": HI, "lopa": {"deadline": 1}}),
        line(3, "/v1/embeddings", {"input": "hi"}),
    ]
    responses = [result.row["response"] for result in decode(engine, records)]
    assert [response["status_code"] for response in responses] == [400] * 3
    assert [response["body"]["error"]["param"] for response in responses] == [
        "stream",
        "lopa.deadline",
        "url",
    ]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"custom_id": None}, "custom_id"),
        ({"custom_id": 7}, "custom_id: got 7"),
        ({"body": "text"}, "body: got 'text'"),
        ({"url": 3}, "url"),
        ({"method": "GET"}, "method: got 'GET'"),
    ],
)
def test_a_line_that_is_no_request_says_why(engine: LocalEngine, changes: Any, part: str) -> None:
    (result,) = decode(engine, [line(1, *GOOD[0]) | changes])
    row = result.row
    assert result.error
    assert (row["response"], row["error"]["code"]) == (None, "invalid_line")
    assert part in row["error"]["message"]
    assert row["custom_id"] == changes.get("custom_id", "mine-1")


def test_a_lost_group_says_nothing_against_the_line(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(sessions: Any, **_: Any) -> Iterator[Any]:
        for index in range(len(sessions)):
            yield RequestFailure(index, WorkerLostError("gone"))

    monkeypatch.setattr(engine, "events", lost)
    own, openai_line = decode(engine, ["own", line(2, CHAT, {"messages": HI, "n": 3, "max_tokens": 9})])
    assert own.worker_lost and openai_line.worker_lost
    assert openai_line.row["response"]["body"]["error"]["code"] == "unavailable"


TRAJECTORY: dict[str, Any] = {"max_tokens": 24, "trajectory": True, "ignore_eos": True, **DRAWN}


def test_a_choice_has_the_trajectory_of_its_text(server: Server, engine: LocalEngine) -> None:
    """As Python has it; in a stream in the choice's last chunk; of an answer that a stop text cuts, up to that."""
    assert engine.tokenizer is not None
    prompt = engine.encode("one of two", raw=True)
    alone = engine.generate(
        prompt, max_new_tokens=24, trajectory=True, ignore_eos=True, temperature=1.0, seed=5
    ).trajectory
    assert alone is not None
    with httpx.Client(base_url=server.url, timeout=60) as client:

        def choices(**fields: Any) -> list[dict[str, Any]]:
            body = {"model": MODEL, "prompt": prompt, **TRAJECTORY, **fields}
            response = client.post(TEXT, json=body)
            assert response.status_code == 200, response.text
            if not fields.get("stream"):
                return list(response.json()["choices"])
            events = [text.removeprefix("data: ") for text in response.text.split("\n\n") if text]
            return [choice for text in events[:-1] for choice in json.loads(text)["choices"]]

        (whole,) = choices()
        assert whole["trajectory"] == json.loads(json.dumps(asdict(alone))) | {
            "settings": whole["trajectory"]["settings"]
        }
        *others, last = choices(stream=True)
        assert last["trajectory"] == whole["trajectory"] and last["finish_reason"] == "length"
        assert not any("trajectory" in other for other in others)
        assert "trajectory" not in choices(trajectory=False)[0]
        half = engine.tokenizer.decode(alone.token_ids[:12])
        (cut,) = choices(stop=[engine.tokenizer.decode(alone.token_ids).removeprefix(half)[:3]])
        shown = cut["trajectory"]["token_ids"]
        assert 0 < len(shown) < 24 and shown == alone.token_ids[: len(shown)]
        assert cut["text"].startswith(engine.tokenizer.decode(shown)[:-1])
        assert cut["trajectory"]["replay"]["stop"] == len(shown) == len(cut["trajectory"]["logprobs"])
