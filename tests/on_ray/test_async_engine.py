"""Many requests of one asyncio program on one group."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing

import pytest
import ray

from actors.async_engine import AsyncRayEngine
from lopa_ray.config.decoder_settings import LopaSettings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import WorkerError, WorkerLostError
from lopa_ray.protocol.events import RequestFailure, RequestStep
from support.faulty_runner import POISON_TOKEN, FaultyRunnerFactory
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

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


def test_requests_come_and_go_at_random_and_keep_their_tokens() -> None:
    local = LocalEngine.from_config(tiny_config())
    rng = random.Random(5)
    requests = [(rng.choice(PROMPTS), rng.choice(list(SETTINGS.values()))) for _ in range(24)]

    async def main() -> None:
        async with await AsyncRayEngine.start(tiny_config()) as engine:

            async def decode_later(prompt: list[int], settings: GenerationSettings) -> tuple[int, ...]:
                await asyncio.sleep(rng.random())
                return await tokens(engine, prompt, settings)

            async def leave_early() -> None:
                session = new_session([1, 2], LONG_SETTINGS, engine.vocabulary)
                async with aclosing(engine.events([session])) as events:
                    await anext(events)

            canvases = await asyncio.gather(
                *(decode_later(*pair) for pair in requests), *(leave_early() for _ in range(4))
            )
            for (prompt, settings), canvas in zip(requests, canvases[: len(requests)], strict=True):
                session = local.create_session(prompt, settings)
                *_, last = local.events([session])
                assert isinstance(last, RequestStep) and canvas == last.outcome.canvas
            await wait_until_idle(engine)

    asyncio.run(main())


def test_a_cancelled_task_frees_its_slot() -> None:
    async def main() -> None:
        async with await AsyncRayEngine.start(tiny_config(model={"max_num_seqs": 1})) as engine:
            task = asyncio.create_task(tokens(engine, [1, 2], LONG_SETTINGS))
            while not (await engine.status()).in_flight:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await wait_until_idle(engine)
            assert await tokens(engine, [3], SETTINGS["d2f"])

    asyncio.run(main())


def test_an_error_reaches_the_request_that_caused_it() -> None:
    async def main() -> None:
        async with await AsyncRayEngine.start(tiny_config(), runner_factory=FaultyRunnerFactory()) as engine:
            with pytest.raises(WorkerError, match="injected fault"):
                await tokens(engine, [5, POISON_TOKEN], SETTINGS["two_phase"])
            assert await tokens(engine, [5], SETTINGS["two_phase"])

    asyncio.run(main())


def test_a_lost_master_ends_every_request_without_another_group() -> None:
    async def main() -> None:
        async with await AsyncRayEngine.start(
            tiny_config(group={"num_workers": 1, "resume_timeout_s": 0})
        ) as engine:
            tasks = [asyncio.create_task(tokens(engine, [n + 1], LONG_SETTINGS)) for n in range(3)]
            while not (await engine.status()).in_flight:
                await asyncio.sleep(0.01)
            ray.kill(engine._group.master)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(result) for result in results] == [WorkerLostError] * 3
            with pytest.raises(WorkerLostError):
                await tokens(engine, [1], SETTINGS["d2f"])

    asyncio.run(main())
