"""LangChain's ChatOpenAI, over chat completions and over the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from lopa_lab.word_problems import Problem, is_correct
from support.order import Order
from support.server_process import ServerProcess

langchain_openai = pytest.importorskip("langchain_openai")

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("error:Pydantic serializer warnings")]

ASK = "Three pens for Mia, please."


@tool(args_schema=Order)
def place_order(**order: Any) -> str:
    """Order items."""
    return Order(**order).confirmation


@tool
def list_items() -> str:
    """What there is."""
    return "pens, books, stamps"


TOOLS = {function_tool.name: function_tool for function_tool in (place_order, list_items)}


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def llm(server: ServerProcess, request: pytest.FixtureRequest) -> Any:
    return langchain_openai.ChatOpenAI(
        model="demo",
        base_url=f"{server.url}/v1",
        api_key=server.api_key,
        max_retries=0,
        stream_usage=True,
        use_responses_api=request.param,
    )


def test_invoke_and_stream(llm: Any, problems: list[Problem]) -> None:
    message = llm.invoke(problems[0].question)
    assert is_correct(problems[0], message.text)
    streamed, *chunks = llm.stream(problems[0].question)
    assert len(chunks) > 1
    for chunk in chunks:
        streamed += chunk
    assert streamed.text == message.text
    for usage in (message.usage_metadata, streamed.usage_metadata):
        assert usage["input_tokens"] > 0 < usage["output_tokens"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_batch(llm: Any, problems: list[Problem]) -> None:
    messages = llm.batch([problem.question for problem in problems])
    assert [
        is_correct(*pair) for pair in zip(problems, (message.text for message in messages), strict=True)
    ] == [True] * len(problems)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(llm: Any, method: str) -> None:
    assert isinstance(llm.with_structured_output(Order, method=method).invoke(ASK), Order)


def test_an_agents_loop(llm: Any) -> None:
    messages: list[Any] = [SystemMessage("You work in a shop."), HumanMessage(ASK)]
    called = llm.bind_tools(list(TOOLS.values()), tool_choice="any").invoke(messages)
    assert called.tool_calls and not called.invalid_tool_calls
    results = [TOOLS[call["name"]].invoke(call) for call in called.tool_calls]
    assert all(isinstance(result, ToolMessage) and result.status == "success" for result in results)
    # The model has learnt nothing of tools; it may answer or call.
    answered = llm.bind_tools(list(TOOLS.values()), tool_choice="auto").invoke([*messages, called, *results])
    assert not answered.invalid_tool_calls
    assert answered.text or answered.tool_calls


def test_stream_of_a_call(llm: Any) -> None:
    bound = llm.bind_tools([place_order], tool_choice="place_order", strict=True)
    streamed, *chunks = bound.stream(ASK)
    for chunk in chunks:
        streamed += chunk
    (call,) = streamed.tool_calls
    assert call["name"] == "place_order" and call["id"]
    Order.model_validate(call["args"])
