"""The shapes of responses and streams, and the error object of each failure."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cluster.choices.messages import ChoicesOutput, ChoicesRequest, RequestAccepted, TextDelta, TokenLogprob
from cluster.openai.completion_objects import ChatChunk, ChatCompletion, Completion, CompletionChunk
from cluster.openai.completions.text import CompletionBuilder, CompletionRequest
from cluster.openai.errors import ErrorObject
from lopa_ray.errors import (
    CheckpointError,
    ClusterError,
    DeadlineError,
    OverloadedError,
    PromptError,
    PromptTooLongError,
    RepeatedLossError,
    RequestCancelledError,
    ScoreError,
    SettingsError,
    TransferError,
    WorkerError,
    WorkerLostError,
    WorkerMemoryError,
)
from support.fake_backend import CHAT, MODEL, TEXT, WORDS, FakeBackend
from support.waiting import wait_until

WHOLE = "".join(WORDS)


def body(path: str, **fields: Any) -> dict[str, Any]:
    """A request that is right, with `fields` on top."""
    ask = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {"model": MODEL, **ask, **fields}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, up to [DONE]."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = response.content.split(b"\n\n")
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines[:-1])
    return [json.loads(line.removeprefix(b"data: ")) for line in lines[:-2]]


def test_a_chat_completion(client: httpx.Client) -> None:
    request = body(CHAT, n=2, logprobs=True, top_logprobs=2, lopa={"trace": True})
    response = client.post(CHAT, json=request, headers={"X-Request-ID": "mine-1"})
    answer = ChatCompletion.model_validate(response.json())
    assert response.headers["x-request-id"] == "mine-1"
    assert (answer.id, answer.model) == ("chatcmpl-mine-1", MODEL)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert {choice.message.content for choice in answer.choices} == {WHOLE}
    assert [choice.lopa.seed for choice in answer.choices] == [7, 8]
    assert answer.usage.model_dump() == {
        "prompt_tokens": 1,
        "completion_tokens": 2 * len(WORDS),
        "total_tokens": 1 + 2 * len(WORDS),
    }
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert [token.token for token in logprobs.content] == list(WORDS)
    assert bytes(logprobs.content[5].bytes) == "ünïcode".encode()
    # JSON has no minus infinity.
    assert [top.logprob for top in logprobs.content[0].top_logprobs] == [-0.1, -9999.0]
    lopa = answer.lopa
    assert (lopa.steps, lopa.forwards, lopa.tokens, lopa.commit_bytes) == (10, 40, 20, 2000)
    assert lopa.rule_steps == 12
    assert (lopa.tpf, lopa.seconds, lopa.queued_seconds) == (2.0, 0.5, 0.1)
    assert lopa.phases_seconds == {"plan": 0.2, "forward": 0.4}
    assert lopa.trace is not None
    assert [event["pid"] for event in lopa.trace.traceEvents] == [0, 1]


def test_what_was_not_asked_for_is_not_sent(client: httpx.Client) -> None:
    answer = client.post(CHAT, json=body(CHAT)).json()
    assert answer["choices"][0]["logprobs"] is None
    assert "trace" not in answer["lopa"]
    chunks = events(client.post(CHAT, json=body(CHAT, stream=True)))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


def test_text_completions_of_several_prompts(client: httpx.Client) -> None:
    response = client.post(
        TEXT, json=body(TEXT, prompt=["a", "bcd"], echo=True, max_tokens=2, stop=["x"], n=2)
    )
    answer = Completion.model_validate(response.json())
    assert [choice.text for choice in answer.choices] == ["aOnce upon"] * 2 + ["bcdOnce upon"] * 2
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 8)


def test_logprobs_of_a_text_completion(client: httpx.Client) -> None:
    asked = body(TEXT, logprobs=1)
    choice = Completion.model_validate(client.post(TEXT, json=asked).json()).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == list(WORDS)
    assert choice.logprobs.top_logprobs[:2] == [{"Once": -0.1}, {"Once": -0.1, " upon": -0.25}]
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert choice.text[offset : offset + len(token)] == token
    streamed = events(client.post(TEXT, json={**asked, "stream": True}))
    offsets = [c["choices"][0]["logprobs"]["text_offset"] for c in streamed if c["choices"][0]["logprobs"]]
    assert [offset for part in offsets for offset in part] == choice.logprobs.text_offset


@pytest.fixture
def builder() -> CompletionBuilder:
    asked = CompletionRequest.parse({"model": MODEL, "prompt": "a"})
    return CompletionBuilder(MODEL, asked, ChoicesRequest("id", ("a",), {}, logprobs=True))


def test_a_character_in_several_tokens_has_one_place(builder: CompletionBuilder) -> None:
    parts = (b"a\xf0", b"\x9f\x99", b"\x82", b"b")
    tokens = tuple(TokenLogprob(at, "\ufffd", part, -1.0, (), part) for at, part in enumerate(parts))
    deltas = [TextDelta(0, "a", tokens[:1]), TextDelta(0, "🙂b", tokens[1:])]
    logprobs = [builder.delta_chunk_choice(delta).logprobs for delta in deltas]
    assert [place for part in logprobs if part for place in part.text_offset] == [0, 1, 1, 2]


def test_a_token_that_the_text_leaves_out_has_no_width(builder: CompletionBuilder) -> None:
    end = TokenLogprob(0, "<end>", b"<end>", -1.0, (), in_text=b"")
    a, b = (TokenLogprob(ord(text), text, text.encode(), -1.0, (), text.encode()) for text in "ab")
    logprobs = builder.delta_chunk_choice(TextDelta(0, "ab", (end, a, end, b))).logprobs
    assert logprobs is not None and logprobs.text_offset == [0, 0, 1, 1]


def test_different_tokens_of_a_place_have_different_names(builder: CompletionBuilder) -> None:
    top = (
        *(
            (1, "\ufffd", b"\xc3", -1.0),
            (2, "\ufffd", b"\xe2\x82", -2.0),
            (3, "\ufffd", "\ufffd".encode(), -2.5),
        ),
        *((4, "A", b"A", -3.0), (5, "A", b"A", -4.0), (6, "\ufffd", b"\xc3", -5.0)),
    )
    drawn = TokenLogprob(7, "A", b"A", -6.0, top, b"A")
    logprobs = builder.delta_chunk_choice(TextDelta(0, "A", (drawn,))).logprobs
    assert logprobs is not None and logprobs.tokens == ["token_id:7"]
    (of_place,) = logprobs.top_logprobs
    names = ["bytes:\\xc3", "bytes:\\xe2\\x82", "\ufffd", "A", "token_id:5", "token_id:6", "token_id:7"]
    assert of_place == dict(zip(names, [-1.0, -2.0, -2.5, -3.0, -4.0, -5.0, -6.0], strict=True))


def test_a_chat_stream(client: httpx.Client) -> None:
    request = body(CHAT, stream=True, stream_options={"include_usage": True}, n=2)
    chunks = [ChatChunk.model_validate(event) for event in events(client.post(CHAT, json=request))]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    for index in range(2):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        first, *middle, last = own
        assert first.delta.model_dump(exclude_unset=True) == {
            "role": "assistant",
            "content": "",
            "refusal": None,
        }
        assert "".join(choice.delta.content or "" for choice in middle) == WHOLE
        assert {choice.finish_reason for choice in own[:-1]} == {None}
        assert last.delta.model_dump(exclude_unset=True) == {}
        assert (last.finish_reason, last.lopa is not None and last.lopa.seed) == ("stop", 7 + index)
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 1 + 2 * len(WORDS)
    assert chunks[-1].lopa is not None


def test_a_text_stream(client: httpx.Client) -> None:
    request = body(TEXT, stream=True, max_tokens=3, lopa={"trace": True})
    *chunks, total = [
        CompletionChunk.model_validate(event) for event in events(client.post(TEXT, json=request))
    ]
    assert [chunk.choices[0].text for chunk in chunks] == [*WORDS[:3], ""]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "length"]
    # The trace needs a place, so the total comes without having asked for the usage.
    assert "usage" not in total.model_fields_set
    assert total.model_dump()["lopa"]["trace"]["traceEvents"]


def test_the_canvas_rides_on_chunks_without_choices(client: httpx.Client) -> None:
    request = body(CHAT, stream=True, max_tokens=2, lopa={"stream_canvas": True})
    chunks = events(client.post(CHAT, json=request))
    snapshots = [chunk["lopa"]["canvas"] for chunk in chunks if not chunk["choices"]]
    assert {ChatChunk.model_validate(chunk).object for chunk in chunks} == {"chat.completion.chunk"}
    assert snapshots[0] == {
        "choice": 0,
        "step": 1,
        "seconds": 0.0,
        "cells": [{"t": "Once", "s": 1}, {"t": "", "s": 0}],
        "branches": [
            {"name": "anchor", "tried": "", "confidence": None},
            {"name": "+1", "tried": "Once", "confidence": 0.9},
        ],
        "winner": 1,
        "rule_steps": [{"branch": 1, "positions": [0], "moves": [], "inserted": [], "deletions": []}],
        "candidates": [],
    }
    assert len(snapshots) == 2


DEATH = "workers were lost: The actor died.\n\tclass_name: BranchWorker\n\tactor_id: secret\n\tpid: 17"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (PromptError("empty prompt"), 400, "invalid_prompt"),
        (PromptTooLongError("too long"), 400, "context_length_exceeded"),
        (SettingsError("block_size: got 0"), 400, "invalid_value"),
        (OverloadedError("the queue is full"), 429, "queue_full"),
        (RequestCancelledError("cancelled"), 499, "request_cancelled"),
        (ClusterError("the server is shutting down"), 503, "unavailable"),
        (WorkerLostError(DEATH), 503, "unavailable"),
        (WorkerError(DEATH), 500, "step_failed"),
        (RepeatedLossError(DEATH), 503, "unavailable"),
        (TransferError(DEATH), 503, "unavailable"),
        (DeadlineError("too late"), 504, "deadline_exceeded"),
        (WorkerMemoryError(DEATH), 500, "step_failed"),
        (ScoreError("NaN"), 500, "step_failed"),
        (CheckpointError("/secret/folder: a template is wrong"), 500, "internal_error"),
        (KeyError("secret"), 500, "internal_error"),
    ],
)
def test_a_refusal_is_an_http_error(
    backend: FakeBackend,
    client: httpx.Client,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
    error: Exception,
    status: int,
    code: str,
) -> None:
    backend.rejection = error
    response = client.post(CHAT, json=body(CHAT, stream=stream))
    detail = ErrorObject.model_validate(response.json()).error
    assert (response.status_code, detail.code) == (status, code)
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert response.headers.get("x-should-retry") == (
        "false" if code in ("deadline_exceeded", "step_failed") else None
    )
    if "secret" not in str(error):
        assert detail.message == str(error)
    else:
        assert "secret" not in response.text
        assert code != "internal_error" or any(record.exc_info for record in caplog.records)
        assert "secret" in caplog.text


def test_an_error_does_not_send_megabytes_back(backend: FakeBackend, client: httpx.Client) -> None:
    backend.rejection = SettingsError("JSON schema: got " + "x" * 10**6)
    message = client.post(CHAT, json=body(CHAT)).json()["error"]["message"]
    assert message.startswith("JSON schema: got xx") and len(message) < 2000


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerLostError(DEATH), "unavailable"),
        (RepeatedLossError(DEATH), "unavailable"),
        (OSError("secret"), "internal_error"),
    ],
)
def test_a_failure_on_the_way(
    backend: FakeBackend, client: httpx.Client, error: Exception, code: str
) -> None:
    backend.failure = error
    assert client.post(CHAT, json=body(CHAT)).status_code in (500, 503)
    *_, text, last = events(client.post(CHAT, json=body(CHAT, stream=True)))
    assert text["choices"][0]["delta"] == {"content": WORDS[1]}
    assert ErrorObject.model_validate(last).error.code == code
    assert "secret" not in json.dumps(last)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_deadline_leaves_what_was_decided(backend: FakeBackend, client: httpx.Client, path: str) -> None:
    backend.deadline_after = 3
    request = body(path, lopa={"deadline": 1, "partial": True})
    response = client.post(path, json=request)
    assert (response.status_code, response.headers["x-should-retry"]) == (504, "false")
    error_object = ErrorObject.model_validate(response.json())
    assert error_object.error.code == "deadline_exceeded"
    assert error_object.partial is not None
    assert error_object.partial.choices[0].finish_reason is None
    assert "".join(WORDS[:3]) in response.json()["partial"]["choices"][0].get("text", response.text)
    assert error_object.partial.usage.completion_tokens == 3
    last = events(client.post(path, json={**request, "stream": True}))[-1]
    assert ErrorObject.model_validate(last).partial is not None
    assert last["error"] == response.json()["error"]


def test_a_backend_that_ends_early_is_an_error(
    backend: FakeBackend, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends_early(request: ChoicesRequest) -> AsyncIterator[ChoicesOutput]:
        yield RequestAccepted((1,), 8)

    monkeypatch.setattr(backend, "_outputs", ends_early)
    assert client.post(CHAT, json=body(CHAT)).json()["error"]["code"] == "internal_error"
    assert events(client.post(CHAT, json=body(CHAT, stream=True)))[-1]["error"]["code"] == "internal_error"


def test_ids(client: httpx.Client) -> None:
    for own in ("a", "A-z_0.9", "x" * 128):
        assert client.get("/version", headers={"X-Request-ID": own}).headers["x-request-id"] == own
    for bad in ("", "a b", "ä".encode("latin-1"), "x" * 129, "a/b"):
        response = client.get("/nowhere", headers={"X-Request-ID": bad})
        assert len(response.headers["x-request-id"]) == 32
    one, two = (client.post(TEXT, json=body(TEXT)).json()["id"] for _ in range(2))
    assert one != two


def test_the_log_has_numbers_and_no_content(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    response = client.post(
        TEXT, json=body(TEXT, prompt="my secret"), headers={"Authorization": "Bearer key-1"}
    )
    lost = client.get("/nowhere%0Aforged")

    def line(of: httpx.Response) -> logging.LogRecord | None:
        own = of.headers["x-request-id"]
        return next((r for r in caplog.records if vars(r).get("request_id") == own), None)

    # A response is read before its line is written.
    wait_until(lambda: line(response) is not None and line(lost) is not None)
    fields = vars(line(response))
    assert (fields["method"], fields["path"], fields["status"], fields["model"]) == ("POST", TEXT, 200, MODEL)
    assert (fields["prompt_tokens"], fields["completion_tokens"]) == (9, len(WORDS))
    assert fields["seconds"] >= 0
    forged = line(lost)
    assert forged is not None and "status=404" in forged.getMessage() and "\n" not in forged.getMessage()
    written = "".join(record.getMessage() for record in caplog.records)
    assert "my secret" not in written and "key-1" not in written and "Once" not in written
