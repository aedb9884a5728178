"""Many requests of one asyncio program on one group."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from actors.async_engine import AsyncRayEngine
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import WorkerError, WorkerLostError
from lopa_ray.protocol.events import RequestFailure, RequestStep
from support.faulty_runner import Poison, faulty_runner
from support.group_under_test import refuse_other_groups
from support.processes import actor_pids, kill_actors
from support.tiny_model import PROMPTS, SETTINGS, tiny_config
from support.waiting import ENDING_TIMEOUT_S, wait_until

pytestmark = pytest.mark.slow

LONG_SETTINGS = LopaSettings(max_new_tokens=200, stop_at_eos=False, confidence_threshold=1.0)


async def tokens(engine: AsyncRayEngine, prompt: list[int], settings: GenerationSettings) -> tuple[int, ...]:
    canvas: tuple[int, ...] = ()
    session = new_session(prompt, settings, engine.vocabulary)
    async with aclosing(engine.events([session])) as events:
        async for event in events:
            if isinstance(event, RequestFailure):
                raise event.error
            canvas = event.outcome.canvas
            assert event.timing is not None and event.timing.forward > 0 and event.timing.gather >= 0
    return canvas


async def wait_until_idle(engine: AsyncRayEngine) -> None:
    deadline = time.monotonic() + 10
    while (await engine.status()).in_flight:
        assert time.monotonic() < deadline, "a slot is still taken"
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def program() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine(program: asyncio.Runner) -> Iterator[AsyncRayEngine]:
    """No other group takes the place of its first one."""
    started = program.run(AsyncRayEngine.start(tiny_config(), runner_factory=faulty_runner))
    refuse_other_groups(started)
    yield started
    started.close()


def test_a_stream_ends_with_the_result(program: asyncio.Runner, engine: AsyncRayEngine) -> None:
    settings = SETTINGS["two_phase"]

    async def run() -> None:
        async with aclosing(engine.stream(PROMPTS[0], settings)) as stream:
            chunks = [chunk async for chunk in stream]
        expected = await engine.generate(PROMPTS[0], settings)
        result = chunks[-1].result
        assert result is not None and result.token_ids == expected.token_ids
        assert len(chunks) == expected.steps and all(chunk.result is None for chunk in chunks[:-1])

    program.run(run())
    status = program.run(engine.status())
    assert repr(engine).endswith(f"device='cpu', workers={status.workers})")


def test_requests_come_and_go_at_random_and_keep_their_tokens(
    program: asyncio.Runner, engine: AsyncRayEngine
) -> None:
    local = LocalEngine.from_config(tiny_config())
    rng = random.Random(5)
    requests = [(rng.choice(PROMPTS), rng.choice(list(SETTINGS.values()))) for _ in range(24)]

    async def decode_later(prompt: list[int], settings: GenerationSettings) -> tuple[int, ...]:
        await asyncio.sleep(rng.random())
        return await tokens(engine, prompt, settings)

    async def leave_early() -> None:
        session = new_session([1, 2], LONG_SETTINGS, engine.vocabulary)
        async with aclosing(engine.events([session])) as events:
            await anext(events)

    async def main() -> list[tuple[int, ...] | None]:
        decoding = (decode_later(*pair) for pair in requests)
        canvases = await asyncio.gather(*decoding, *(leave_early() for _ in range(4)))
        await wait_until_idle(engine)
        return canvases

    for (prompt, settings), canvas in zip(requests, program.run(main()), strict=False):
        *_, last = local.events([local.create_session(prompt, settings)])
        assert isinstance(last, RequestStep) and canvas == last.outcome.canvas


def test_a_cancelled_task_frees_its_slot(program: asyncio.Runner, engine: AsyncRayEngine) -> None:
    async def main() -> None:
        slots = engine.config.model.max_num_seqs
        tasks = [asyncio.create_task(tokens(engine, [1, 2], LONG_SETTINGS)) for _ in range(slots)]
        while (await engine.status()).in_flight < slots:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        await wait_until_idle(engine)
        assert await tokens(engine, [3], SETTINGS["d2f"])

    program.run(main())


def test_an_error_reaches_the_request_that_caused_it(program: asyncio.Runner, engine: AsyncRayEngine) -> None:
    async def main() -> None:
        with pytest.raises(WorkerError, match="injected fault"):
            await tokens(engine, [Poison.ERROR, 5], SETTINGS["two_phase"])
        assert await tokens(engine, [5], SETTINGS["two_phase"])

    program.run(main())


def test_a_lost_master_takes_its_workers_along_and_ends_every_request(
    program: asyncio.Runner, engine: AsyncRayEngine
) -> None:
    async def main() -> None:
        async with engine:
            tasks = [asyncio.create_task(tokens(engine, [n + 1], LONG_SETTINGS)) for n in range(3)]
            while not (await engine.status()).in_flight:
                await asyncio.sleep(0.01)
            kill_actors("Master")
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results] == [WorkerLostError] * 3
            with pytest.raises(WorkerLostError):
                await tokens(engine, [1], SETTINGS["d2f"])

    program.run(main())
    wait_until(lambda: not actor_pids("BranchWorker"), "its workers to end", ENDING_TIMEOUT_S)
