"""OpenAI's own client and the Responses API: streams, models, and responses that are handed back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.fake_backend import MODEL, TOOL_PARTS, FakeBackend, Server
from support.responses_api import TOOLS, call

# Pydantic's warnings, about what does not fit its model.
pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("error::UserWarning")]


@pytest.fixture
def ai(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as opened:
        yield opened


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
