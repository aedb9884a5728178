"""Groups that are lost whole, at random steps: requests go on on another one, with every step as it would have been."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from actors.async_engine import AsyncRayEngine
from actors.engine import RayEngine
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import WorkerLostError
from lopa_ray.protocol.events import RequestFailure, RequestStep
from lopa_ray.protocol.outcome import StepOutcome
from support.fault_injection import FaultInjection
from support.group_under_test import (
    NUM_WORKERS,
    ReferenceResults,
    RequestKey,
    group_with_faults,
    nightly,
    random_requests,
)
from support.processes import actor_pids, kill_actors, send_signal
from support.tiny_model import PROMPTS, SETTINGS, TINY_EXPERTS, TINY_MODEL, tiny_config
from support.waiting import TIMEOUT_S, wait_until

BY_LOAD = LopaSettings(max_new_tokens=64, num_branches=6, branch_budget="load", stop_at_eos=False)


class ReferenceSteps(dict[RequestKey, list[StepOutcome]]):
    """The steps of each request in one process, decoded on demand."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.model = {"path": str(folder)}
        self._engine = LocalEngine.from_config(tiny_config(model=self.model))

    def __missing__(self, request: RequestKey) -> list[StepOutcome]:
        session = self._engine.create_session(PROMPTS[request[0]], SETTINGS[request[1]])
        events = self._engine.events([session])
        self[request] = [event.outcome for event in events if isinstance(event, RequestStep)]
        return self[request]


@pytest.fixture(
    scope="module",
    params=[TINY_MODEL, *nightly(*TINY_EXPERTS.values())],
    ids=lambda folder: folder.name,
)
def reference_steps(request: pytest.FixtureRequest) -> ReferenceSteps:
    return ReferenceSteps(request.param)


@pytest.fixture(scope="module")
def engine(reference_steps: ReferenceSteps) -> Iterator[RayEngine]:
    """One that outlives several of its groups."""
    with RayEngine.from_config(tiny_config(model={**reference_steps.model, "max_num_seqs": 6})) as running:
        yield running


def decode(
    engine: RayEngine, requests: Sequence[RequestKey], kills: dict[int, str]
) -> tuple[list[list[StepOutcome]], list[float]]:
    """The steps of each request, and the pause after each kill in seconds.

    `kills`: after how many events → which class of actors.
    """
    sessions = [engine.create_session(PROMPTS[prompt], SETTINGS[name]) for prompt, name in requests]
    steps: list[list[StepOutcome]] = [[] for _ in requests]
    pauses: list[float] = []
    killed_at: float | None = None
    for number, event in enumerate(engine.events(sessions), 1):
        assert isinstance(event, RequestStep), event
        steps[event.request_key].append(event.outcome)
        if killed_at is not None and time.monotonic() - killed_at > 0.5:  # what was on its way came at once
            pauses.append(time.monotonic() - killed_at)
            killed_at = None
        if number in kills:
            kill_actors(kills[number])
            killed_at = time.monotonic()
    return steps, pauses


@pytest.mark.medium
def test_requests_go_on_on_another_group(engine: RayEngine, reference_steps: ReferenceSteps) -> None:
    rng = random.Random(1)
    requests = [(rng.randrange(len(PROMPTS)), name) for name in SETTINGS]
    steps, pauses = decode(engine, requests, {rng.randrange(20, 60): "Master", 100: "BranchWorker"})
    for request, got in zip(requests, steps, strict=True):
        assert got == reference_steps[request]
    print(f"pauses: {pauses}")
    first, *others = engine.checksums()
    assert others == [first] * len(others)
    assert engine.status().workers == 2
    assert list(engine.start_phases) == ["master", "workers", "model", "join"]  # of the other group


@pytest.mark.nightly
def test_a_master_that_hangs_is_killed_and_its_requests_go_on(
    engine: RayEngine, reference_steps: ReferenceSteps
) -> None:
    request = (0, "two_phase")
    events = engine.events([engine.create_session(PROMPTS[request[0]], SETTINGS[request[1]])])
    (master,) = actor_pids("Master")
    steps = [next(events).outcome]
    send_signal(master, signal.SIGSTOP)
    began = time.monotonic()
    steps += [event.outcome for event in events]
    print(f"done {time.monotonic() - began:.1f} s after the master was stopped")
    assert steps == reference_steps[request]
    wait_until(lambda: master not in actor_pids("Master"), "the hung master to end")
    assert engine.status().workers == 2


@pytest.mark.nightly
def test_what_depends_on_the_load_goes_on_too(engine: RayEngine) -> None:
    """Steps that are handed on already are not decided again, so they cannot come out otherwise."""
    sessions = [engine.create_session(prompt, BY_LOAD) for prompt in PROMPTS]
    canvases: dict[int, tuple[int, ...]] = {}
    mask = engine.vocabulary.mask_token_id
    steps = dict.fromkeys(range(len(PROMPTS)), 0)
    for number, event in enumerate(engine.events(sessions), 1):
        assert isinstance(event, RequestStep), event
        index, outcome = event.request_key, event.outcome
        steps[index] += 1
        assert outcome.step == steps[index]
        both = zip(canvases.get(index, ()), outcome.canvas, strict=False)  # the canvas grows
        assert all(old in (mask, new) for old, new in both)
        canvases[index] = outcome.canvas
        if number == 40:
            kill_actors("Master")
    assert all(len(canvas) == 64 and mask not in canvas for canvas in canvases.values())


@pytest.mark.slow
def test_a_group_that_cannot_be_replaced_in_time_is_one_clear_error_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = {"num_workers": 1}
    with RayEngine.from_config(tiny_config(group=one)) as engine:
        in_no_time = tiny_config(group={**one, "start_timeout_s": 0.01})
        monkeypatch.setattr(engine._running._group, "_config", in_no_time)
        sessions = [engine.create_session(prompt, SETTINGS["two_phase"]) for prompt in PROMPTS]
        events = engine.events(sessions)
        next(events)
        kill_actors("Master")
        errors = {event.request_key: event.error for event in events if isinstance(event, RequestFailure)}
    assert len(errors) == len(PROMPTS)
    for error in errors.values():
        assert isinstance(error, WorkerLostError)
        assert "no other group could take over" in str(error) and "start_timeout_s" in str(error)


@pytest.mark.nightly
def test_the_first_that_takes_over_is_lost_as_well(tmp_path: Path, reference: ReferenceResults) -> None:
    """As when Ray puts it on a node that is gone, and does not know yet."""
    with group_with_faults(tmp_path, reference) as (group, faults):

        def lose_the_group_and_a_replacement() -> None:
            faults.inject("load")
            kill_actors("Master")

        group.run_batch(6, lose_the_group_and_a_replacement)
        assert not faults.pending
        group.wait_for_workers(NUM_WORKERS)


@pytest.mark.nightly
def test_an_asyncio_program_sees_a_pause_and_the_rest(
    reference_steps: ReferenceSteps, tmp_path: Path
) -> None:
    rng = random.Random(3)
    requests = random_requests(rng, 6)

    async def main() -> None:
        faults = FaultInjection(tmp_path)
        config = tiny_config(model=reference_steps.model)
        engine = await AsyncRayEngine.start(config, runner_factory=faults)
        lost = asyncio.Event()

        async def decode_one(request: RequestKey, after: int) -> list[StepOutcome]:
            prompt, settings = PROMPTS[request[0]], SETTINGS[request[1]]
            session = new_session(prompt, settings, engine.vocabulary)
            got = []
            async with aclosing(engine.events([session])) as events:
                async for event in events:
                    assert isinstance(event, RequestStep), event
                    got.append(event.outcome)
                    if len(got) == after:
                        faults.inject("load")  # for a worker of the next group; others follow
                        kill_actors("Master")
                        lost.set()
            return got

        async def decode_late(request: RequestKey) -> list[StepOutcome]:
            await lost.wait()
            return await decode_one(request, 0)

        try:
            tasks = [decode_one(request, 8 * (at == 0)) for at, request in enumerate(requests)]
            async with asyncio.timeout(TIMEOUT_S):
                *got, last = await asyncio.gather(*tasks, decode_late(requests[0]))
            assert got == [reference_steps[request] for request in requests]
            assert last == reference_steps[requests[0]]
            assert not faults.pending
            assert (await engine.status()).in_flight == 0
        finally:
            engine.close()

    asyncio.run(main())
