"""Constraints are compiled in processes of their own: within limits, each once, and only while a caller waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine import compile_pool
from lopa_ray.engine.compile_pool import Call, CompilePool
from lopa_ray.engine.constraint_cache import ConstraintCache
from lopa_ray.errors import OverloadedError, SettingsError
from lopa_ray.limited_process import LimitedProcess, ProcessLimitError
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.tokenizer import Tokenizer

pytestmark = pytest.mark.medium

FOR_EVER = 600.0
CHOICE = LopaSettings(guided_choice=["a", "b"])


def explosive(number: int = 0) -> LopaSettings:
    return LopaSettings(guided_regex=f"[ab]*a[ab]{{24}}{number}")


def new_cache(limit_s: float) -> ConstraintCache:
    tokenizer = Tokenizer.from_pretrained(DEMO_MODEL)
    assert tokenizer is not None
    return ConstraintCache(tokenizer, Vocabulary(tokenizer.vocab_size, 2, 1), limit_s)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """All calls that pools have started."""
    started: list[Call] = []
    start = CompilePool.start

    def recorded(*arguments: Any) -> Call:
        started.append(start(*arguments))
        return started[-1]

    monkeypatch.setattr(CompilePool, "start", recorded)
    return started


@asynccontextmanager
async def under_way(*waiting: Awaitable[None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Tasks that have begun to wait, until they are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    await asyncio.sleep(0)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def test_a_compilation_ends_at_its_limit_and_the_refusal_is_kept(calls: list[Call]) -> None:
    cache = new_cache(0.3)
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"too large: it needs more than 0.3 s") as refused:
            cache.constraint(explosive())
        assert refused.value.setting == "guided_regex"
    assert len(calls) == 1
    assert cache.constraint(CHOICE) is not None


def test_a_compilation_has_a_limit_of_memory() -> None:
    process = LimitedProcess(bytearray(b"ab"))
    with pytest.raises(ProcessLimitError, match="1 GiB"):
        process.call("__mul__", 2**31, FOR_EVER)
    assert process.call("__mul__", 2, FOR_EVER) == b"abab"
    process.close()


def test_a_process_that_somebody_else_ends_is_no_refusal() -> None:
    process = LimitedProcess(bytearray(b"ab"))
    process.kill()
    with pytest.raises(OverloadedError, match="status -9"):
        process.call("__mul__", 2, FOR_EVER)


def test_what_is_known_does_not_wait_and_what_is_new_finds_a_process_free(calls: list[Call]) -> None:
    async def run() -> None:
        cache = new_cache(FOR_EVER)
        known = cache.constraint(CHOICE)
        heavy = (cache.prepare_constraint(explosive(number), "heavy") for number in range(8))
        async with under_way(*heavy) as tasks:
            assert cache.constraint(CHOICE.replace(max_new_tokens=9)) is known
            await cache.prepare_constraint(LopaSettings(guided_choice=["c"]), "light")
            assert not any(task.done() for task in tasks)

    asyncio.run(run())
    assert len(calls) == 1 + 8 + 1


def test_a_compilation_lasts_as_long_as_somebody_waits_for_it(calls: list[Call]) -> None:
    async def run() -> None:
        cache = new_cache(FOR_EVER)
        async with under_way(cache.prepare_constraint(explosive(), "second")):
            async with under_way(cache.prepare_constraint(explosive(), "first")):
                (call,) = calls
            assert not call.cancelled
        assert call.cancelled

        # All places of one client, taken by what nobody waits for, are free again.
        many = (cache.prepare_constraint(explosive(number), "first") for number in range(1, 9))
        async with under_way(*many):
            pass
        await cache.prepare_constraint(CHOICE, "first")

    asyncio.run(run())
    assert all(call.future.cancelled() for call in calls[:-1])
    assert compile_pool.MAX_PER_CLIENT < 8
