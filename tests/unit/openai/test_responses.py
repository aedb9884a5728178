"""Responses of the Responses API, and the events that make them up."""

from __future__ import annotations

import httpx
import pytest

from cluster.openai.errors import ErrorObject
from cluster.openai.responses.objects import ResponseObject
from lopa_ray.errors import WorkerLostError
from support.fake_backend import MODEL, RESPONSES, TOOL_PARTS, WORDS, FakeBackend, error_of
from support.responses_api import TOOLS, anonymous, body, events, whole

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # Pydantic's, about what does not fit its model

WHOLE = "".join(WORDS)


def test_a_response(backend: FakeBackend, client: httpx.Client) -> None:
    asked = {"instructions": "be brief", "temperature": 0.5, "metadata": {"a": "b"}, "tools": TOOLS}
    response = whole(client, **asked)
    assert response["id"].startswith("resp_") and response["model"] == MODEL
    assert (response["status"], response["error"], response["incomplete_details"]) == (
        "completed",
        None,
        None,
    )
    assert response["completed_at"] >= response["created_at"]
    (message,) = response["output"]
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert message["content"] == [{"type": "output_text", "text": WHOLE, "annotations": [], "logprobs": []}]
    assert response["usage"]["input_tokens"] == 2
    assert response["usage"]["output_tokens"] == len(WORDS)
    assert response["usage"]["total_tokens"] == 2 + len(WORDS)
    assert {name: response[name] for name in asked} == asked
    assert (response["tool_choice"], response["parallel_tool_calls"]) == ("auto", True)
    assert response["lopa"]["steps"] == 5
    named = {"type": "function", "name": "add"}
    assert whole(client, tools=TOOLS, tool_choice=named)["tool_choice"] == named


def test_a_response_of_all_kinds_of_items(backend: FakeBackend, client: httpx.Client) -> None:
    backend.parts = TOOL_PARTS
    response = whole(client, tools=TOOLS)
    reasoning, message, *calls = response["output"]
    assert (reasoning["content"], reasoning["summary"]) == (
        [{"type": "reasoning_text", "text": "let me see"}],
        [],
    )
    assert message["content"][0]["text"] == "I ask around"
    assert [(item["name"], item["arguments"]) for item in calls] == [
        ("add", '{"a": 1, "é": 2}'),
        ("stop", "{}"),
    ]
    assert len({item["call_id"] for item in calls} | {item["id"] for item in response["output"]}) == 6
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


@pytest.mark.parametrize(
    ("limit", "status", "items"),
    [
        (2, "incomplete", ["reasoning"]),
        (3, "incomplete", ["reasoning", "message"]),
        (5, "incomplete", ["reasoning", "message", "function_call"]),
        (8, "completed", ["reasoning", "message", "function_call", "function_call"]),
    ],
)
def test_a_response_that_is_cut_off(
    backend: FakeBackend, client: httpx.Client, limit: int, status: str, items: list[str]
) -> None:
    backend.parts = TOOL_PARTS
    response = whole(client, max_output_tokens=limit)
    assert response["status"] == status
    assert response["incomplete_details"] == (
        {"reason": "max_output_tokens"} if status == "incomplete" else None
    )
    assert [item["type"] for item in response["output"]] == items
    assert [item["status"] for item in response["output"]] == ["completed"] * (len(items) - 1) + [status]
    *_, last = events(client, max_output_tokens=limit)
    assert last["type"] == f"response.{status}"
    assert anonymous(last["response"]) == anonymous(response)


def test_an_answer_of_nothing_is_an_empty_message(backend: FakeBackend, client: httpx.Client) -> None:
    backend.parts = ()
    (message,) = whole(client)["output"]
    assert message["content"][0]["text"] == ""
    assert anonymous(events(client)[-1]["response"])["output"] == anonymous({"output": [message]})["output"]


def test_logprobs_are_those_of_the_text(backend: FakeBackend, client: httpx.Client) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    (message,) = whole(client, **asked)["output"]
    logprobs = message["content"][0]["logprobs"]
    assert [logprob["token"] for logprob in logprobs] == list(WORDS)
    assert logprobs[0]["top_logprobs"] == [{"token": "Once", "logprob": -0.1, "bytes": list(b"Once")}]
    streamed = events(client, **asked)
    deltas = [event["logprobs"] for event in streamed if event["type"] == "response.output_text.delta"]
    assert [logprob for part in deltas for logprob in part] == logprobs
    assert anonymous(streamed[-1]["response"])["output"] == anonymous({"output": [message]})["output"]


# Streams


def test_the_events_of_a_stream(backend: FakeBackend, client: httpx.Client) -> None:
    backend.parts = TOOL_PARTS
    streamed = events(client, tools=TOOLS)
    text, arguments = "response.output_text", "response.function_call_arguments"
    thought = "response.reasoning_text"
    added, done = "response.output_item.added", "response.output_item.done"
    assert [event["type"]for event in streamed] == [
        *("response.created", "response.in_progress"),
        *(added, f"{thought}.delta", f"{thought}.delta", f"{thought}.done", done),
        *(added, "response.content_part.added", f"{text}.delta", f"{text}.delta", f"{text}.done"),
        *("response.content_part.done", done),
        *(added, f"{arguments}.delta", f"{arguments}.delta", f"{arguments}.done", done),
        *(added, f"{arguments}.delta", f"{arguments}.done", done),
        "response.completed",
    ]  # fmt: skip
    created, last = streamed[0]["response"], streamed[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert created["id"] == last["id"]
    # What the events of an item build up is the item, in its place.
    for at, item in enumerate(last["output"]):
        own = [event for event in streamed if event.get("output_index") == at]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        begin, end = own[0]["item"], own[-1]["item"]
        assert (begin["status"], begin["id"], end) == ("in_progress", item["id"], item)
        deltas = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        whole_text = item.get("arguments") or item["content"][0]["text"]
        assert deltas == whole_text
        (said,) = [event for event in own if event["type"].endswith(("text.done", "arguments.done"))]
        assert said.get("text", said.get("arguments")) == whole_text
    assert anonymous(last) == anonymous(whole(client, tools=TOOLS))


def test_a_canvas_has_events_of_its_own(client: httpx.Client) -> None:
    streamed = events(client, max_output_tokens=2, lopa={"stream_canvas": True})
    canvases = [event["canvas"] for event in streamed if event["type"] == "response.lopa.canvas"]
    assert [canvas["step"] for canvas in canvases] == [1, 2]


def test_an_error_in_a_stream_is_an_event(backend: FakeBackend, client: httpx.Client) -> None:
    backend.failure = WorkerLostError("actor_id: secret")
    *_, error, failed = events(client)
    assert (error["type"], error["code"]) == ("error", "unavailable") and "secret" not in error["message"]
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "unavailable", "message": error["message"]}


def test_a_deadline_leaves_what_was_decided(backend: FakeBackend, client: httpx.Client) -> None:
    backend.parts, backend.deadline_after = TOOL_PARTS, 4
    asked = {"lopa": {"deadline": 1, "partial": True}}
    response = client.post(RESPONSES, json=body(**asked))
    assert error_of(response, 504).code == "deadline_exceeded"
    partial = ErrorObject.model_validate(response.json()).partial
    assert isinstance(partial, dict)
    ResponseObject.model_validate(partial)
    assert (partial["status"], partial["usage"]["output_tokens"]) == ("incomplete", 4)
    assert [item["status"] for item in partial["output"]] == ["completed", "incomplete"]
    *_, error, failed = events(client, **asked)
    assert error["code"] == "deadline_exceeded"
    assert failed["response"]["status"] == "failed"
    assert anonymous(failed["response"])["output"] == anonymous(partial)["output"]
