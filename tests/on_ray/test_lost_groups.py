"""Groups that are lost whole, at random steps: requests go on on another one, with every step as it would have been."""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from actors.async_engine import AsyncRayEngine
from actors.engine import RayEngine
from lopa_ray.config.decoder_settings import LopaSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import WorkerLostError
from lopa_ray.protocol.events import RequestFailure, RequestStep
from lopa_ray.protocol.outcome import StepOutcome
from support.fault_injection import FaultInjection
from support.groups import PROMPTS, SETTINGS, config
from support.trials import PATIENCE_S, WORKERS, Oracle, actor_pids, end, fated

Request = tuple[int, str]

BY_LOAD = LopaSettings(max_new_tokens=64, num_branches=6, branch_budget="load", stop_at_eos=False)


class Undisturbed:
    """Each request's steps, alone in one process."""

    def __init__(self) -> None:
        self._local = LocalEngine.from_config(config())
        self._known: dict[Request, list[StepOutcome]] = {}

    def __getitem__(self, request: Request) -> list[StepOutcome]:
        if request not in self._known:
            prompt, name = request
            session = self._local.create_session(PROMPTS[prompt], SETTINGS[name])
            self._known[request] = [
                event.outcome for event in self._local.events([session]) if isinstance(event, RequestStep)
            ]
        return self._known[request]


@pytest.fixture(scope="module")
def undisturbed() -> Undisturbed:
    return Undisturbed()


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    """One that outlives several of its groups."""
    with RayEngine.from_config(config(model={"max_num_seqs": 6})) as running:
        yield running


def strike(kind: str) -> None:
    """Kill all actors of that kind, and wait until they are gone."""
    pids = actor_pids(kind)
    assert pids
    for pid in pids:
        end(pid, signal.SIGKILL)


def requests(draw: random.Random, number: int) -> list[Request]:
    return [(draw.randrange(len(PROMPTS)), draw.choice(list(SETTINGS))) for _ in range(number)]


def decode(
    engine: RayEngine, asked: Sequence[Request], strikes: dict[int, str]
) -> tuple[list[list[StepOutcome]], list[float]]:
    """The steps of each request, and seconds without one after each strike; `strikes`: after so many events."""
    sessions = [engine.create_session(PROMPTS[prompt], SETTINGS[name]) for prompt, name in asked]
    steps: list[list[StepOutcome]] = [[] for _ in asked]
    pauses: list[float] = []
    struck: float | None = None
    for number, event in enumerate(engine.events(sessions), 1):
        assert isinstance(event, RequestStep), event
        steps[event.request_id].append(event.outcome)
        if struck is not None and time.monotonic() - struck > 0.5:  # what was on its way came at once
            pauses.append(time.monotonic() - struck)
            struck = None
        if number in strikes:
            strike(strikes[number])
            struck = time.monotonic()
    return steps, pauses


def test_requests_go_on_on_another_group(engine: RayEngine, undisturbed: Undisturbed) -> None:
    draw = random.Random(1)
    asked = [(draw.randrange(len(PROMPTS)), name) for name in SETTINGS]
    steps, pauses = decode(engine, asked, {draw.randrange(20, 60): "Master", 100: "BranchWorker"})
    for request, got in zip(asked, steps, strict=True):
        assert got == undisturbed[request]
    print(f"held up {pauses}")
    first, *others = engine.checksums()
    assert others == [first] * len(others)
    assert engine.status().workers == 2


@pytest.mark.long
def test_what_depends_on_the_load_goes_on_too(engine: RayEngine) -> None:
    """Steps that are handed on already are not decided again, so they cannot come out otherwise."""
    sessions = [engine.create_session(prompt, BY_LOAD) for prompt in PROMPTS]
    canvases: dict[int, tuple[int, ...]] = {}
    mask = engine.vocabulary.mask_token_id
    steps = dict.fromkeys(range(len(PROMPTS)), 0)
    for number, event in enumerate(engine.events(sessions), 1):
        assert isinstance(event, RequestStep), event
        index, outcome = event.request_id, event.outcome
        steps[index] += 1
        assert outcome.step == steps[index]
        before = canvases.get(index, ())
        assert all(
            old in (mask, new) for old, new in zip(before, outcome.canvas, strict=False)
        )  # the canvas grows
        canvases[index] = outcome.canvas
        if number == 40:
            strike("Master")
    assert all(len(canvas) == 64 and mask not in canvas for canvas in canvases.values())


def test_a_group_that_cannot_be_replaced_in_time_is_one_clear_error_for_each_request() -> None:
    with RayEngine.from_config(config(group={"num_workers": 1, "resume_timeout_s": 0.01})) as engine:
        sessions = [engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in PROMPTS]
        events = engine.events(sessions)
        next(events)
        strike("Master")
        errors = {event.request_id: event.error for event in events if isinstance(event, RequestFailure)}
    assert len(errors) == len(PROMPTS)
    for error in errors.values():
        assert isinstance(error, WorkerLostError)
        assert "no other group could take over" in str(error) and "resume_timeout_s" in str(error)


@pytest.mark.long
def test_the_first_that_takes_over_is_lost_as_well(tmp_path: Path, oracle: Oracle) -> None:
    """As when Ray puts it on a node that is gone, and does not know yet."""
    with fated(tmp_path, oracle) as (trial, fates):

        def happens() -> None:
            fates.lay("load")
            strike("Master")

        trial.batch(6, happens)
        assert not fates.waiting
        trial.until_there_are(WORKERS)


@pytest.mark.long
def test_an_asyncio_program_sees_a_pause_and_the_rest(undisturbed: Undisturbed, tmp_path: Path) -> None:
    draw = random.Random(3)
    asked = requests(draw, 6)

    async def main() -> None:
        fates = FaultInjection(tmp_path)
        engine = await AsyncRayEngine.start(config(), runner_factory=fates)
        lost = asyncio.Event()

        async def one(request: Request, after: int) -> list[StepOutcome]:
            prompt, settings = PROMPTS[request[0]], SETTINGS[request[1]]
            session = new_session(prompt, settings, engine.info.vocabulary)
            got = []
            async with aclosing(engine.decode(session)) as steps:
                async for _, outcome, _ in steps:
                    got.append(outcome)
                    if len(got) == after:
                        fates.lay("load")  # for one of those who take over; others follow
                        strike("Master")
                        lost.set()
            return got

        async def late(request: Request) -> list[StepOutcome]:
            await lost.wait()
            return await one(request, 0)

        try:
            tasks = [one(request, 8 * (at == 0)) for at, request in enumerate(asked)]
            async with asyncio.timeout(PATIENCE_S):
                *got, last = await asyncio.gather(*tasks, late(asked[0]))
            assert got == [undisturbed[request] for request in asked]
            assert last == undisturbed[asked[0]]
            assert not fates.waiting
            assert (await engine.status()).in_flight == 0
        finally:
            engine.close()

    asyncio.run(main())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Master", "BranchWorker"])
def test_at_random_steps(kind: str, undisturbed: Undisturbed, capsys: pytest.CaptureFixture) -> None:
    draw = random.Random(f"long {kind}")
    pauses: list[float] = []
    number = 0
    with RayEngine.from_config(config(group={"num_workers": 3})) as engine:
        while number < 60 or len(pauses) < 10:
            asked = requests(draw, 6)
            number += len(asked)
            steps, held = decode(engine, asked, {draw.randrange(5, 100): kind})
            pauses += held
            assert steps == [undisturbed[request] for request in asked]
            first, *others = engine.checksums()
            assert others == [first] * len(others)
    with capsys.disabled():
        print(
            f"\nkilled: {kind}: {len(pauses)} groups lost, {number} requests, held up "
            f"{statistics.median(pauses):.2f} s (median), {max(pauses):.2f} s (worst)"
        )
