"""OpenAI's own client works as it is: sync and async, streaming and not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from lopa_ray.errors import OverloadedError, PromptTooLongError, RequestCancelledError
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


def test_chat_stream(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == WHOLE
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == len(WORDS)
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-2:] == [None, "stop"]


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HI) as stream:
        texts = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(texts) == final.choices[0].message.content == WHOLE


def test_a_canvas_does_not_disturb_the_client(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=HI, extra_body={"lopa": {"stream_canvas": True}}
    ) as stream:
        assert stream.get_final_completion().choices[0].message.content == WHOLE


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


def test_async(server: Server) -> None:
    async def use() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="right") as client:
            whole = client.chat.completions.create(model=MODEL, messages=HI)
            text = client.completions.create(model=MODEL, prompt="a")
            stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return [(await whole).choices[0].message.content or "", (await text).choices[0].text, streamed]

    assert asyncio.run(use()) == [WHOLE] * 3


def test_errors_are_the_clients_own(server: Server, client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> Any:
        return client.chat.completions.create(**{"model": MODEL, "messages": HI, **fields})

    with pytest.raises(openai.BadRequestError, match="functions is not supported") as wrong:
        ask(functions=[{"name": "f"}])
    assert (wrong.value.param, wrong.value.code) == ("functions", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError, match="served: fake"):
        ask(model="gpt-5")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    server.backend.rejection = PromptTooLongError("9 exceed max_model_len 8")
    with pytest.raises(openai.BadRequestError) as long:
        ask(stream=True)
    assert long.value.code == "context_length_exceeded"
    server.backend.rejection = OverloadedError("the queue is full")
    with pytest.raises(openai.RateLimitError):
        ask()
    server.backend.rejection, server.backend.failure = None, RequestCancelledError("it was cancelled")
    with pytest.raises(openai.APIError, match="it was cancelled"):
        list(ask(stream=True))


@pytest.mark.medium
def test_a_full_queue_is_tried_again(server: Server, client: openai.OpenAI) -> None:
    server.backend.rejection = OverloadedError("the queue is full")
    requests = server.backend.requests

    class Relents(list[Any]):
        def append(self, request: Any) -> None:
            super().append(request)
            if len(self) == 2:
                server.backend.rejection = None

    server.backend.requests = Relents(requests)
    answer = client.with_options(max_retries=2).completions.create(model=MODEL, prompt="a")
    assert answer.choices[0].text == WHOLE
    assert len(server.backend.requests) == 2
