"""The Responses API over HTTP: what is taken, what is refused, the response, and the events that make it up."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from cluster.choices.messages import EngineRequest
from cluster.openai.response_models import ErrorObject
from cluster.openai.responses_models import ResponseEvent, ResponseObject
from lopa_ray.errors import OverloadedError, PromptError, SettingsError, WorkerLostError
from support.fake_backend import MODEL, RESPONSES, TOOL_PARTS, WORDS, FakeBackend, Server, error_of

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # Pydantic's, about what does not fit its model

WHOLE = "".join(WORDS)
ADD = {
    "type": "function",
    "name": "add",
    "description": "the sum",
    "parameters": {"type": "object"},
    "strict": True,
}
STOP = {"type": "function", "name": "stop"}
TOOLS: list[Any] = [ADD, STOP]
OFFERED = tuple(
    {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}
    for tool in TOOLS
)


@pytest.fixture
def backend(server: Server) -> FakeBackend:
    return server.backend


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "hi", **fields}


def sent(backend: FakeBackend, client: httpx.Client, **fields: Any) -> EngineRequest:
    """What the backend gets."""
    response = client.post(RESPONSES, json=body(**fields))
    assert response.status_code == 200, response.text
    return backend.requests[-1][1]


def whole(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post(RESPONSES, json=body(**fields))
    assert response.status_code == 200, response.text
    ResponseObject.model_validate(response.json())
    found: dict[str, Any] = response.json()
    return found


def events(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each with the name and the number that it should have."""
    response = client.post(RESPONSES, json=body(stream=True, **fields))
    assert response.status_code == 200, response.text
    *parts, end = response.content.split(b"\n\n")
    assert end == b""
    found = []
    for number, part in enumerate(parts):
        name, data = part.split(b"\n")
        event = json.loads(data.removeprefix(b"data: "))
        ResponseEvent.model_validate(event)
        assert name == b"event: " + event["type"].encode() and event["sequence_number"] == number
        found.append(event)
    return found


def anonymous(response: dict[str, Any]) -> dict[str, Any]:
    """Without ids and times, which differ."""
    gone = ("id", "call_id", "created_at", "completed_at")
    text = json.dumps(response)
    value: dict[str, Any] = json.loads(
        text, object_hook=lambda each: {key: inner for key, inner in each.items() if key not in gone}
    )
    return value


# Requests


def test_a_response_becomes_a_job(backend: FakeBackend, client: httpx.Client) -> None:
    fields = {
        "instructions": "be brief",
        "input": "hi",
        "max_output_tokens": 16,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 4,
        "bad_words": ["no"],
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "max_tool_calls": 3,
        "reasoning": {"effort": "none", "summary": "auto"},
        "chat_template_kwargs": {"x": 1},
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "top_logprobs": 1,
        "store": False,
        "background": False,
        "truncation": "disabled",
        "service_tier": "auto",
        "metadata": {"a": "b"},
        "safety_identifier": "me",
        "user": "me",
        "lopa": {"num_branches": 2, "deadline": 9, "partial": True},
    }
    request = sent(backend, client, **fields)
    assert request == EngineRequest(
        id=request.id,
        prompts=(({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}),),
        settings={
            "max_new_tokens": 16,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "seed": 4,
            "bad_words": ["no"],
            "top_logprobs": 1,
            "num_branches": 2,
        },
        tools=OFFERED,
        forced_tools=("add",),
        parallel_tool_calls=False,
        template_variables={"reasoning_effort": "none", "enable_thinking": False, "x": 1},
        logprobs=True,
        deadline_s=9.0,
        partial=True,
    )


NEUTRAL: dict[str, Any] = {
    "tools": [],
    "tool_choice": "none",
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {},
    "include": [],
    "store": False,
    "previous_response_id": None,
    "conversation": None,
    "prompt": None,
    "stream_options": None,
    "truncation": "disabled",
    "context_management": [],
    "background": False,
}


def test_what_asks_for_nothing_is_taken(backend: FakeBackend, client: httpx.Client) -> None:
    plain = EngineRequest("", (({"role": "user", "content": "hi"},),), {})
    for fields in ({}, NEUTRAL, dict.fromkeys(NEUTRAL)):
        request = sent(backend, client, **fields)
        assert request == EngineRequest(request.id, plain.prompts, {})


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_object"}, {"type": "object"}),
        (
            {
                "type": "json_schema",
                "name": "a",
                "strict": True,
                "schema": {"enum": ["é", None], "const": None},
            },
            {"enum": ["é", None], "const": None},
        ),
    ],
)
def test_the_form_of_the_text(backend: FakeBackend, client: httpx.Client, form: Any, schema: Any) -> None:
    request = sent(backend, client, text={"format": form})
    assert json.loads(request.settings["guided_json"]) == schema
    assert whole(client, text={"format": form})["text"] == {"format": form}


ITEMS: list[Any] = [
    {"role": "developer", "content": "be brief"},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "1 +"}, {"type": "input_text", "text": " 2"}],
    },
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "why"}],
        "encrypted_content": None,
    },
    {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "see", "annotations": [], "logprobs": []}],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "add",
        "arguments": '{"a": 1}',
        "status": "completed",
    },
    {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "oops"},
    {"type": "function_call_output", "call_id": "c1", "output": "3"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "4"}]},
    {"type": "message", "role": "assistant", "content": "three"},
    {"role": "assistant", "content": "or four"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]},
    {"type": "function_call", "call_id": "c3", "name": "stop", "arguments": "{}"},
]


def call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_items_become_messages(backend: FakeBackend, client: httpx.Client) -> None:
    assert sent(backend, client, input=ITEMS).prompts[0] == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "1 + 2"},
        {
            "role": "assistant",
            "content": "see",
            "reasoning_content": "why",
            "tool_calls": [call("c1", "add", {"a": 1}), call("c2", "add", "oops")],
        },
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
        {"role": "tool", "content": "4", "tool_call_id": "c2"},
        {"role": "assistant", "content": "three"},
        {"role": "assistant", "content": "or four"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "short",
            "tool_calls": [call("c3", "stop", {})],
        },
    )


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [1]}, "input[0]", "invalid_value"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "missing_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "invalid_value",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "invalid_value"),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]},
            "input[0].call_id",
            "missing_parameter",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": 1}]},
            "input[0].output",
            "invalid_value",
        ),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"max_tokens": 3}, "max_tokens", "unknown_parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"store": True}, "store", "invalid_value"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "invalid_value"),
        ({"conversation": "c"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_parameter"),
        ({"tools": [{"name": "f"}]}, "tools[0].type", "missing_parameter"),
        ({"tools": [ADD, ADD]}, "tools", "invalid_value"),
        ({"tools": [{**ADD, "defer_loading": True}]}, "tools[0].defer_loading", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "invalid_value"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "invalid_value"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format", "invalid_value"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "invalid_value"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", "invalid_value"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", "unsupported_parameter"),
        ({"include": ["file_search_call.results"]}, "include[0]", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "unsupported_parameter",
        ),
        ({"stop": "x"}, "stop", "unknown_parameter"),
        ({"guided_json": {}}, "guided_json", "unknown_parameter"),
        ({"lopa": {"stream_canvas": True}}, "lopa.stream_canvas", "invalid_value"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, fields: Any, param: str, code: str) -> None:
    error = error_of(client.post(RESPONSES, json=body(**fields)), 400)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (PromptError("too odd"), "input"),
        (SettingsError("max_new_tokens: got 3"), "max_output_tokens"),
        (SettingsError("top_logprobs: got 3"), "top_logprobs"),
        (SettingsError("guided_json: no"), "text.format"),
        (SettingsError("num_branches: got 0"), "lopa.num_branches"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_a_group_refuses_is_named_by_its_field(
    backend: FakeBackend, client: httpx.Client, error: Exception, param: str, stream: bool
) -> None:
    backend.rejection = error
    fields = {"text": {"format": {"type": "json_object"}}, "stream": stream}
    assert error_of(client.post(RESPONSES, json=body(**fields)), 400).param == param


# Responses


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
    assert [(each["name"], each["arguments"]) for each in calls] == [
        ("add", '{"a": 1, "é": 2}'),
        ("stop", "{}"),
    ]
    assert len({each["call_id"] for each in calls} | {each["id"] for each in response["output"]}) == 6
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
    assert [each["token"] for each in logprobs] == list(WORDS)
    assert logprobs[0]["top_logprobs"] == [{"token": "Once", "logprob": -0.1, "bytes": list(b"Once")}]
    found = events(client, **asked)
    deltas = [event["logprobs"] for event in found if event["type"] == "response.output_text.delta"]
    assert [each for part in deltas for each in part] == logprobs
    assert anonymous(found[-1]["response"])["output"] == anonymous({"output": [message]})["output"]


# Streams


def test_the_events_of_a_stream(backend: FakeBackend, client: httpx.Client) -> None:
    backend.parts = TOOL_PARTS
    found = events(client, tools=TOOLS)
    text, arguments = "response.output_text", "response.function_call_arguments"
    thought = "response.reasoning_text"
    added, done = "response.output_item.added", "response.output_item.done"
    assert [event["type"]for event in found] == [
        *("response.created", "response.in_progress"),
        *(added, f"{thought}.delta", f"{thought}.delta", f"{thought}.done", done),
        *(added, "response.content_part.added", f"{text}.delta", f"{text}.delta", f"{text}.done"),
        *("response.content_part.done", done),
        *(added, f"{arguments}.delta", f"{arguments}.delta", f"{arguments}.done", done),
        *(added, f"{arguments}.delta", f"{arguments}.done", done),
        "response.completed",
    ]  # fmt: skip
    created, last = found[0]["response"], found[-1]["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    assert created["id"] == last["id"]
    # What the events of an item build up is the item, in its place.
    for at, item in enumerate(last["output"]):
        own = [event for event in found if event.get("output_index") == at]
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
    found = events(client, max_output_tokens=2, lopa={"stream_canvas": True})
    canvases = [event["canvas"] for event in found if event["type"] == "response.lopa.canvas"]
    assert [canvas["step"] for canvas in canvases] == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_answer_is_an_http_error(
    backend: FakeBackend, client: httpx.Client, stream: bool
) -> None:
    backend.rejection = OverloadedError("the queue is full")
    response = client.post(RESPONSES, json=body(stream=stream))
    assert error_of(response, 429).code == "queue_full" and "retry-after" in response.headers


def test_an_error_in_a_stream_is_an_event(backend: FakeBackend, client: httpx.Client) -> None:
    backend.failure = WorkerLostError("gone")
    *_, error, failed = events(client)
    assert (error["type"], error["code"], error["message"]) == ("error", "unavailable", "gone")
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "unavailable", "message": "gone"}


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


# OpenAI's client


@pytest.fixture
def ai(server: Server) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


def test_openai_client_accumulates_the_response(backend: FakeBackend, ai: openai.OpenAI) -> None:
    backend.parts = TOOL_PARTS
    canvas: Any = {"lopa": {"stream_canvas": True}}
    with ai.responses.stream(model=MODEL, input="hi", tools=TOOLS, extra_body=canvas) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots == ["I ask", "I ask around"] and final.output_text == "I ask around"
    made = [(item.name, item.arguments) for item in final.output if item.type == "function_call"]
    assert made == [("add", '{"a": 1, "é": 2}'), ("stop", "{}")]
    assert final.usage is not None and final.usage.output_tokens == len(TOOL_PARTS)


def test_openai_client_parses_into_a_model(backend: FakeBackend, ai: openai.OpenAI) -> None:
    class Sum(openai.BaseModel):
        a: int

    backend.parts = (type(TOOL_PARTS[0])(content='{"a": 3}'),)
    parsed = ai.responses.parse(model=MODEL, input="hi", text_format=Sum)
    assert parsed.output_parsed == Sum(a=3)
    again: list[Any] = [{"role": "user", "content": "hi"}, *parsed.output]
    ai.responses.create(model=MODEL, input=again)
    assert backend.requests[-1][1].prompts[0][1] == {"role": "assistant", "content": '{"a": 3}'}


@pytest.mark.parametrize("form", ["object", "model_dump", "to_dict"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_is_the_input_of_the_next(
    backend: FakeBackend, ai: openai.OpenAI, streamed: bool, form: str
) -> None:
    backend.parts = TOOL_PARTS
    asked: dict[str, Any] = {"model": MODEL, "tools": TOOLS, "include": ["message.output_text.logprobs"]}
    items: list[Any] = [{"role": "user", "content": "hi"}]
    response: Any
    if streamed:
        with ai.responses.stream(**asked, input=items) as stream:
            response = stream.get_final_response()
    else:
        response = ai.responses.create(**asked, input=items)
    items += response.output if form == "object" else [getattr(item, form)() for item in response.output]
    ids = [item.call_id for item in response.output if item.type == "function_call"]
    items += [{"type": "function_call_output", "call_id": each, "output": "3"} for each in ids]
    ai.responses.create(**asked, input=items)
    assert backend.requests[-1][1].prompts[0] == (
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I ask around",
            "reasoning_content": "let me see",
            "tool_calls": [call(ids[0], "add", {"a": 1, "é": 2}), call(ids[1], "stop", {})],
        },
        {"role": "tool", "content": "3", "tool_call_id": ids[0]},
        {"role": "tool", "content": "3", "tool_call_id": ids[1]},
    )


def test_openai_client_sees_errors(backend: FakeBackend, ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        ai.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    assert wrong.value.param == "previous_response_id"
    backend.failure = WorkerLostError("gone")
    found = list(ai.responses.create(model=MODEL, input="hi", stream=True))
    assert [event.type for event in found[-2:]] == ["error", "response.failed"]
    with pytest.raises(openai.APIStatusError):
        ai.responses.create(model=MODEL, input="hi")
