"""OpenAI's own client: agents with tools, answers as pydantic models, the Responses API, streams, errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from lopa_lab.word_problems import Problem, is_correct
from support.order import PARAMETERS, Order
from support.server_process import ServerProcess

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("error:Pydantic serializer warnings")]

SYSTEM = {"role": "system", "content": "You work in a shop."}
USER = {"role": "user", "content": "Three pens for Mia, please."}

PLACE_ORDER: Any = {
    "type": "function",
    "function": {"name": "place_order", "description": "Order items.", "parameters": PARAMETERS},
}
LIST_ITEMS: Any = {"type": "function", "function": {"name": "list_items", "description": "What there is."}}
FUNCTIONS = {
    "place_order": lambda **arguments: Order(**arguments).confirmation,
    "list_items": lambda: "pens, books, stamps",
}

PLACE_ORDER_RESPONSES: Any = {"type": "function", "strict": True, **PLACE_ORDER["function"]}


def test_an_agents_loop(ai: openai.OpenAI) -> None:
    messages: list[Any] = [SYSTEM, USER]
    for choice in ("required", {"type": "function", "function": {"name": "place_order"}}):
        reply = ai.chat.completions.create(
            model="demo", messages=messages, tools=[PLACE_ORDER, LIST_ITEMS], tool_choice=choice
        )
        assert reply.choices[0].finish_reason == "tool_calls"
        message = reply.choices[0].message
        assert message.content is None and message.tool_calls
        messages.append(message)
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    ids = [
        message["tool_call_id"]
        for message in messages
        if isinstance(message, dict) and "tool_call_id" in message
    ]
    assert len(set(ids)) == len(ids) == 2
    last = ai.chat.completions.create(
        model="demo", messages=messages, tools=[PLACE_ORDER, LIST_ITEMS], tool_choice="none"
    )
    assert last.choices[0].finish_reason == "stop"
    assert isinstance(last.choices[0].message.content, str) and not last.choices[0].message.tool_calls


def test_auto_leaves_it_to_the_model(ai: openai.OpenAI, problems: list[Problem]) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "list_items", "arguments": "{}"}}
    reply = ai.chat.completions.create(
        model="demo",
        messages=[
            USER,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": FUNCTIONS["list_items"]()},
            {"role": "user", "content": problems[0].question},
        ],
        tools=[PLACE_ORDER, LIST_ITEMS],
        tool_choice="auto",
        parallel_tool_calls=False,
    )
    message = reply.choices[0].message
    # The model has learnt nothing of tools. It may answer or call, but what it does is whole.
    assert reply.choices[0].finish_reason == ("tool_calls" if message.tool_calls else "stop")
    assert message.tool_calls or isinstance(message.content, str)
    assert reply.usage.prompt_tokens > len(problems[0].question.split())


def test_a_call_comes_in_pieces(ai: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "place_order"}}
    chunks = list(
        ai.chat.completions.create(
            model="demo",
            messages=[SYSTEM, USER],
            tools=[PLACE_ORDER, LIST_ITEMS],
            tool_choice=choice,
            stream=True,
            stream_options={"include_usage": True},
            # Hardly more than a token per step.
            extra_body={"lopa": {"block_size": 8, "confidence_threshold": 1.0}},
        )
    )
    *pieces, usage = chunks
    assert not usage.choices and usage.usage.completion_tokens > 0
    calls = [call for piece in pieces for call in piece.choices[0].delta.tool_calls or ()]
    assert len(calls) > 2 and {call.index for call in calls} == {0}
    assert calls[0].id and calls[0].function.name == "place_order"
    assert not any(call.id or call.function.name for call in calls[1:])
    Order.model_validate_json("".join(call.function.arguments or "" for call in calls))
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices[0].finish_reason] == [
        "tool_calls"
    ]


def test_parse(ai: openai.OpenAI) -> None:
    answered = ai.chat.completions.parse(model="demo", messages=[USER], response_format=Order)
    assert isinstance(answered.choices[0].message.parsed, Order)
    called = ai.chat.completions.parse(
        model="demo", messages=[USER], tools=[openai.pydantic_function_tool(Order)], tool_choice="required"
    )
    (call,) = called.choices[0].message.tool_calls
    assert call.function.name == "Order" and isinstance(call.function.parsed_arguments, Order)


def test_stream_of_an_answer(ai: openai.OpenAI, problems: list[Problem]) -> None:
    with ai.chat.completions.stream(
        model="demo",
        messages=[{"role": "user", "content": problems[0].question}],
        stream_options={"include_usage": True},
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    text = final.choices[0].message.content
    assert is_correct(problems[0], text)
    assert "".join(event.delta for event in events if event.type == "content.delta") == text
    assert [event.content for event in events if event.type == "content.done"] == [text]
    assert final.usage.total_tokens == final.usage.prompt_tokens + final.usage.completion_tokens


def test_stream_of_a_model_and_of_a_call(ai: openai.OpenAI) -> None:
    with ai.chat.completions.stream(model="demo", messages=[USER], response_format=Order) as stream:
        done = [event for event in stream if event.type == "content.done"]
    assert [type(event.parsed) for event in done] == [Order]
    with ai.chat.completions.stream(
        model="demo", messages=[USER], tools=[openai.pydantic_function_tool(Order)], tool_choice="required"
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    (finished,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert "".join(event.arguments_delta for event in deltas) == finished.arguments
    assert isinstance(finished.parsed_arguments, Order)
    assert final.choices[0].message.tool_calls[0].function.arguments == finished.arguments


def test_responses(ai: openai.OpenAI, problems: list[Problem]) -> None:
    reply = ai.responses.create(
        model="demo", input=problems[0].question, max_output_tokens=64, temperature=0, store=False
    )
    assert reply.status == "completed" and is_correct(problems[0], reply.output_text)
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    cut = ai.responses.create(model="demo", input=problems[0].question, max_output_tokens=5)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens == 5


def test_an_agents_loop_of_responses(ai: openai.OpenAI) -> None:
    conversation: list[Any] = [USER]
    reply = ai.responses.create(
        model="demo",
        instructions=SYSTEM["content"],
        input=conversation,
        tools=[PLACE_ORDER_RESPONSES],
        tool_choice="required",
    )
    (call,) = reply.output
    assert (call.type, call.name, call.status) == ("function_call", "place_order", "completed")
    conversation += reply.output
    output = FUNCTIONS[call.name](**json.loads(call.arguments))
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    last = ai.responses.create(
        model="demo", input=conversation, tools=[PLACE_ORDER_RESPONSES], tool_choice="none"
    )
    assert last.status == "completed"
    assert [item.type for item in last.output] == ["message"]


def test_parse_of_responses(ai: openai.OpenAI) -> None:
    answered = ai.responses.parse(model="demo", input=USER["content"], text_format=Order)
    assert isinstance(answered.output_parsed, Order)
    called = ai.responses.parse(
        model="demo",
        input=USER["content"],
        tools=[openai.pydantic_function_tool(Order)["function"] | {"type": "function"}],
        tool_choice={"type": "function", "name": "Order"},
    )
    (call,) = called.output
    assert Order.model_validate(call.parsed_arguments)


def test_stream_of_responses(ai: openai.OpenAI, problems: list[Problem]) -> None:
    with ai.responses.stream(model="demo", input=problems[0].question) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert is_correct(problems[0], final.output_text)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    with ai.responses.stream(model="demo", input=USER["content"], text_format=Order) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Order)
    with ai.responses.stream(
        model="demo", input=USER["content"], tools=[PLACE_ORDER_RESPONSES], tool_choice="required"
    ) as stream:
        events = list(stream)
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(pieces) == done.arguments
    Order.model_validate_json(done.arguments)


def test_many_at_once(server: ServerProcess, problems: list[Problem]) -> None:
    async def answer(ai: openai.OpenAI, problem: Problem, *, stream: bool) -> str:
        messages: Any = [{"role": "user", "content": problem.question}]
        if not stream:
            return str((await ai.responses.create(model="demo", input=messages)).output_text)
        reply = await ai.chat.completions.create(model="demo", messages=messages, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in reply])

    async def answer_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.api_key) as ai:
            asked = [answer(ai, problem, stream=at % 2 == 0) for at, problem in enumerate(problems)]
            return await asyncio.gather(*asked)

    texts = asyncio.run(answer_all())
    assert [is_correct(problem, text) for problem, text in zip(problems, texts, strict=True)] == [True] * len(
        texts
    )


def test_errors(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        ai.with_options(api_key="an-unknown-key").models.list()
    assert caught.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as caught:
        ai.responses.create(model="gpt-5", input="hi")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="stores nothing") as caught:
        ai.responses.create(model="demo", input="hi", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        ai.chat.completions.create(model="demo", messages=[USER], tool_choice="required")
    with pytest.raises(openai.APITimeoutError):
        ai.with_options(timeout=0.01).chat.completions.create(model="demo", messages=[USER])
