"""OpenAI's Agents SDK, over the Responses API and over chat completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from lopa_lab.word_problems import Problem, is_correct
from support.order import Order
from support.server_process import ServerProcess

agents = pytest.importorskip("agents")

import openai

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("error:Pydantic serializer warnings")]

MODELS = {"responses": agents.OpenAIResponsesModel, "chat": agents.OpenAIChatCompletionsModel}
ASK = "Three pens for Mia, please."


@pytest.fixture(autouse=True, scope="module")
def no_tracing() -> None:
    agents.set_tracing_disabled(True)


@asynccontextmanager
async def open_model(server: ServerProcess, api: str) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.api_key, max_retries=0) as ai:
        yield MODELS[api](model="demo", openai_client=ai)


@pytest.mark.parametrize("api", MODELS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_answer(server: ServerProcess, problems: list[Problem], api: str, streamed: bool) -> None:
    async def run() -> str:
        async with open_model(server, api) as model:
            agent = agents.Agent(name="Solver", model=model)
            if not streamed:
                return str((await agents.Runner.run(agent, problems[0].question)).final_output)
            result = agents.Runner.run_streamed(agent, problems[0].question)
            deltas = [
                event.data.delta
                async for event in result.stream_events()
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
            ]
            assert "".join(deltas) == result.final_output
            return str(result.final_output)

    assert is_correct(problems[0], asyncio.run(run()))


@pytest.mark.parametrize("api", MODELS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_tool(server: ServerProcess, api: str, streamed: bool) -> None:
    orders: list[Order] = []

    @agents.function_tool
    def place_order(customer: str, item: Literal["pens", "books"], gift: bool) -> str:
        """Order items."""
        orders.append(Order(customer=customer[:4], item=item, count=1, gift=gift))
        return orders[-1].confirmation

    async def run() -> Any:
        async with open_model(server, api) as model:
            agent = agents.Agent(
                name="Shop",
                instructions="You work in a shop.",
                model=model,
                tools=[place_order],
                # The model has learnt nothing of tools and would not call one of its own accord.
                model_settings=agents.ModelSettings(tool_choice="required"),
                tool_use_behavior="stop_on_first_tool",
            )
            if not streamed:
                return await agents.Runner.run(agent, ASK)
            result = agents.Runner.run_streamed(agent, ASK)
            names = [
                event.name async for event in result.stream_events() if event.type == "run_item_stream_event"
            ]
            assert names == ["tool_called", "tool_output"]
            return result

    result = asyncio.run(run())
    (order,) = orders
    assert result.final_output == order.confirmation


@pytest.mark.parametrize("api", MODELS)
def test_what_a_tool_returned_goes_back(server: ServerProcess, api: str) -> None:
    asked: list[str] = []

    @agents.function_tool
    def list_items() -> str:
        """What there is."""
        asked.append("items")
        return "pens, books, stamps"

    async def run() -> Any:
        async with open_model(server, api) as model:
            # After a call the SDK itself goes back to tool_choice "auto", so the run ends with an answer.
            agent = agents.Agent(
                name="Shop",
                model=model,
                tools=[list_items],
                model_settings=agents.ModelSettings(tool_choice="required"),
            )
            return await agents.Runner.run(agent, ASK, max_turns=3)

    result = asyncio.run(run())
    assert asked == ["items"]
    assert isinstance(result.final_output, str)
    assert result.context_wrapper.usage.requests == 2


@pytest.mark.parametrize("api", MODELS)
def test_an_answer_as_a_model(server: ServerProcess, api: str) -> None:
    async def run() -> Any:
        async with open_model(server, api) as model:
            agent = agents.Agent(name="Clerk", model=model, output_type=Order)
            return (await agents.Runner.run(agent, ASK)).final_output

    assert isinstance(asyncio.run(run()), Order)
