"""Structured output from a server, through OpenAI's client."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel

from support.client_request import PROMPT
from support.server_process import ServerProcess

pytestmark = pytest.mark.medium


class Line(BaseModel):
    """What OpenAI's client makes a strict schema of, references and all."""

    item: Literal["pens", "books"]
    count: int
    note: str | None


class Basket(BaseModel):
    owner: str
    lines: list[Line]


def test_openais_client_parses_the_answer(server: ServerProcess) -> None:
    with server.openai(max_retries=0) as ai:
        reply = ai.chat.completions.parse(
            model="demo",
            messages=[{"role": "user", "content": PROMPT}],
            response_format=Basket,
            max_tokens=64,
        )
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(reply.choices[0].message.parsed, Basket)
