"""Tokens never depend on who decodes them, on how many workers, or on what is in flight beside them."""

from __future__ import annotations

import httpx
import pytest

from lopa_ray.engine.local import LocalEngine
from support.client import QUESTIONS, Ask, ask_all, random_asks


@pytest.mark.parametrize("model", ["demo", "demo-d2f"])
def test_a_server_says_what_the_local_engine_says(
    client: httpx.Client, engines: dict[str, LocalEngine], model: str
) -> None:
    for question in QUESTIONS[:3]:
        ask = Ask(question, model=model)
        assert ask.of_server(client) == ask.of_engine(engines[model])


@pytest.mark.parametrize(
    "count", [40, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_answers_do_not_depend_on_the_load(
    client: httpx.Client, engines: dict[str, LocalEngine], count: int
) -> None:
    asks = random_asks(seed=count, count=count)
    alone = [ask.of_engine(engines["demo"]) for ask in asks]
    for concurrency in (1, 16):
        answers = ask_all(client, asks, concurrency)
        differing = [ask for ask, got, wanted in zip(asks, answers, alone, strict=True) if got != wanted]
        assert not differing, f"at concurrency {concurrency}"
