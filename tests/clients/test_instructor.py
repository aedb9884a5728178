"""Instructor: answers as pydantic models, in the modes that it has for OpenAI's API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.order import Order
from support.server_process import ServerProcess

instructor = pytest.importorskip("instructor")

import openai
from instructor import Mode

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("error:Pydantic serializer warnings")]

MODES = [Mode.JSON_SCHEMA, Mode.TOOLS, Mode.RESPONSES_TOOLS]
ASK: Any = [{"role": "user", "content": "Three pens for Mia, please."}]


@pytest.mark.parametrize("mode", MODES)
def test_create(server: ServerProcess, mode: Mode) -> None:
    with server.openai(max_retries=0) as ai:
        client = instructor.from_openai(ai, mode=mode)
        order, reply = client.create_with_completion(
            model="demo", messages=ASK, response_model=Order, max_retries=0
        )
    assert isinstance(order, Order)
    assert reply.usage.total_tokens > 0


def test_partial_answers(server: ServerProcess) -> None:
    with server.openai(max_retries=0) as ai:
        client = instructor.from_openai(ai, mode=Mode.JSON_SCHEMA)
        *partial, last = client.create_partial(
            model="demo", messages=ASK, response_model=Order, max_retries=0
        )
    assert partial and Order.model_validate(last.model_dump())


def test_async(server: ServerProcess) -> None:
    async def create() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.api_key) as ai:
            client = instructor.from_openai(ai, mode=Mode.TOOLS)
            return await client.create(model="demo", messages=ASK, response_model=Order, max_retries=0)

    assert isinstance(asyncio.run(create()), Order)
