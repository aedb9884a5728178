"""From an engine's start to its end: what fails, what is closed early or never, and what is left then."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import ray
from ray.core.generated import gcs_pb2

from actors.async_engine import AsyncRayEngine
from actors.engine import RayEngine
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.errors import ClusterError, LopaError, WorkerLostError
from lopa_ray.protocol.events import RequestFailure
from support.faulty_runner import LoadFaultFactory
from support.group_under_test import ReferenceResults, comparable
from support.processes import command_line, kill_actors, run_program, wait_until_no_actors
from support.tiny_model import PROMPTS, SETTINGS, TINY_MODEL, tiny_config
from support.waiting import ENDING_TIMEOUT_S, TIMEOUT_S, wait_until

LONG = LopaSettings(max_new_tokens=200, stop_at_eos=False, confidence_threshold=1.0)

ONE_WORKER = {"num_workers": 1}


@pytest.fixture(autouse=True)
def no_actors_before_and_after() -> object:
    wait_until_no_actors()
    yield
    wait_until_no_actors()


@pytest.mark.slow
def test_closing_while_another_thread_iterates_ends_its_requests() -> None:
    engine = RayEngine.from_config(tiny_config(group=ONE_WORKER))
    sessions = [engine.create_session(prompt, LONG) for prompt in PROMPTS]
    begun = threading.Event()
    errors: list[LopaError] = []

    def iterate() -> None:
        try:
            for event in engine.events(sessions):
                begun.set()
                if isinstance(event, RequestFailure):
                    assert isinstance(event.error, LopaError)
                    errors.append(event.error)
        except ClusterError as error:
            errors.append(error)

    iterating = threading.Thread(target=iterate)
    iterating.start()
    assert begun.wait(TIMEOUT_S)
    engine.close()
    iterating.join(10)
    assert not iterating.is_alive()
    assert errors and all("closed" in str(error) for error in errors)
    with pytest.raises(ClusterError, match="closed"):
        engine.generate(PROMPTS[0], LONG)
    with pytest.raises(ClusterError, match="closed"):
        engine.status()


@pytest.mark.nightly
def test_a_group_that_cannot_be_replaced_leaves_no_actors_and_a_later_request_starts_another(
    tmp_path: Path, reference: ReferenceResults
) -> None:
    fault = tmp_path / "fault"
    config = tiny_config(group=ONE_WORKER)
    with RayEngine.from_config(config, runner_factory=LoadFaultFactory(fault)) as engine:
        with closing(engine.events([engine.create_session(PROMPTS[0], LONG)])) as events:
            next(events)
            fault.touch()
            kill_actors("Master")
            *_, last = events
        assert isinstance(last, RequestFailure) and isinstance(last.error, WorkerLostError)
        assert "no other group could take over" in str(last.error)
        assert "injected fault while loading" in str(last.error)
        wait_until_no_actors()
        with pytest.raises(WorkerLostError):
            engine.status()
        with pytest.raises(WorkerLostError):
            engine.resize(2)
        fault.unlink()
        assert comparable(engine.generate(PROMPTS[0], SETTINGS["two_phase"])) == reference[0, "two_phase"]
        assert engine.status().workers == 1
        kill_actors("Master")
        wait_until(lambda: engine._engine.resuming, "another group to be started")
    # Closed while it starts, which leaves no actors either.


@pytest.mark.nightly
def test_an_engine_that_was_closed_says_so_to_later_tasks() -> None:
    async def main() -> None:
        async with await AsyncRayEngine.start(tiny_config(group=ONE_WORKER)) as engine:
            decoding = asyncio.create_task(engine.generate(PROMPTS[0], LONG))
            await asyncio.sleep(0.05)  # far less than 200 steps take
        for task in (decoding, engine.generate(PROMPTS[0], LONG)):
            with pytest.raises(WorkerLostError, match="closed"):
                await task
        with pytest.raises(WorkerLostError):
            await engine.status()

    asyncio.run(main())


@pytest.mark.nightly
def test_an_engine_that_is_never_closed_ends_with_its_program() -> None:
    pids = run_program("unclosed_engine.py")
    assert pids
    wait_until(lambda: not [pid for pid in pids if _is_ray(pid)], "Ray's processes to end", ENDING_TIMEOUT_S)


def _is_ray(pid: int) -> bool:
    return psutil.pid_exists(pid) and "ray" in command_line(psutil.Process(pid))


@pytest.mark.nightly
def test_actors_have_the_names_that_the_dashboard_shows() -> None:
    with RayEngine.from_config(tiny_config(group={"num_workers": 2})):
        ray.nodes()  # connects to the tables
        accessor = ray._private.state.state._global_state_accessor
        actors = map(gcs_pb2.ActorTableData.FromString, accessor.get_actor_table(None, "ALIVE"))
        names = {actor.repr_name for actor in actors}
    assert names >= {f"{TINY_MODEL.name}/{actor}" for actor in ("master", "worker-0", "worker-1")}
