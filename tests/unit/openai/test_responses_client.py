"""OpenAI's own client and the Responses API: streams, models, and responses that are handed back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from cluster.choices.answer_parser import AnswerDelta
from lopa_ray.errors import WorkerLostError
from support.fake_backend import MODEL, TOOL_PARTS, FakeBackend, Server
from support.responses_api import TOOLS, call

pytestmark = pytest.mark.filterwarnings("error::UserWarning")  # Pydantic's, about what does not fit its model


@pytest.fixture
def ai(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


def test_openai_client_accumulates_the_response(backend: FakeBackend, ai: openai.OpenAI) -> None:
    backend.parts = TOOL_PARTS
    canvas: Any = {"lopa": {"stream_canvas": True}}
    with ai.responses.stream(model=MODEL, input="hi", tools=TOOLS, extra_body=canvas) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots == ["I ask", "I ask around"] and final.output_text == "I ask around"
    calls = [(item.name, item.arguments) for item in final.output if item.type == "function_call"]
    assert calls == [("add", '{"a": 1, "é": 2}'), ("stop", "{}")]
    assert final.usage is not None and final.usage.output_tokens == len(TOOL_PARTS)


def test_openai_client_parses_into_a_model(backend: FakeBackend, ai: openai.OpenAI) -> None:
    class Sum(openai.BaseModel):
        a: int

    backend.parts = (AnswerDelta(content='{"a": 3}'),)
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
    items += [{"type": "function_call_output", "call_id": call_id, "output": "3"} for call_id in ids]
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
    streamed = list(ai.responses.create(model=MODEL, input="hi", stream=True))
    assert [event.type for event in streamed[-2:]] == ["error", "response.failed"]
    with pytest.raises(openai.APIStatusError):
        ai.responses.create(model=MODEL, input="hi")
