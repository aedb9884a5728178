"""OpenAI's own client works as it is: streaming and not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from lopa_ray.errors import RequestCancelledError
from support.fake_backend import HI, MODEL, WORDS, Server

WHOLE = "".join(WORDS)
KEY = "right"
HTTP_SETTINGS = {"api_keys": [KEY]}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as opened:
        yield opened


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HI,
        max_completion_tokens=5,
        temperature=0.5,
        seed=1,
        n=2,
        logprobs=True,
        top_logprobs=1,
        stop=["x"],
        user="me",
        extra_body={"top_k": 5, "lopa": {"num_branches": 2}},
    )
    assert [choice.message.content for choice in answer.choices] == ["".join(WORDS[:5])] * 2
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.content is not None
    assert answer.choices[0].logprobs.content[1].token == " upon"
    assert answer.usage is not None and answer.usage.completion_tokens == 10
    assert answer.model_extra is not None and answer.model_extra["lopa"]["steps"] == 10
    assert answer._request_id and answer.id == f"chatcmpl-{answer._request_id}"


@pytest.mark.parametrize("canvas", [False, True])
def test_chat_stream(client: openai.OpenAI, canvas: bool) -> None:
    extra = {"lopa": {"stream_canvas": canvas}}
    with client.chat.completions.stream(model=MODEL, messages=HI, extra_body=extra) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(texts) == final.choices[0].message.content == WHOLE


def test_a_response_repeats_what_was_asked(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    raw = client.responses.with_raw_response.create(
        model=MODEL,
        input="hi",
        text={"format": {"type": "json_schema", "name": "sum", "schema": schema}},
        tools=[{"type": "function", "name": "add", "parameters": schema, "strict": True}],
    )
    # The client takes objects of any shape; validated they have to be as OpenAI has them.
    answer = openai.types.responses.Response.model_validate_json(raw.http_response.content)
    assert answer.output_text == WHOLE
    form = answer.text and answer.text.format
    assert isinstance(form, openai.types.responses.ResponseFormatTextJSONSchemaConfig)
    assert form.schema_ == schema
    assert [tool.to_dict() for tool in answer.tools] == [
        {"type": "function", "name": "add", "parameters": schema, "strict": True}
    ]


@pytest.mark.filterwarnings("error:Pydantic serializer warnings")
def test_reasoning_that_is_handed_back_warns_of_nothing(client: openai.OpenAI) -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
    answer = client.responses.create(model=MODEL, input=[*HI, reasoning, *HI])
    assert answer.output_text == WHOLE


def test_errors_are_the_clients_own(server: Server, client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> Any:
        return client.chat.completions.create(**{"model": MODEL, "messages": HI, **fields})

    with pytest.raises(openai.BadRequestError, match="functions is not supported") as wrong:
        ask(functions=[{"name": "f"}])
    assert (wrong.value.param, wrong.value.code) == ("functions", "unsupported_parameter")
    server.backend.failure = RequestCancelledError("it was cancelled")
    with pytest.raises(openai.APIError, match="it was cancelled"):
        list(ask(stream=True))
