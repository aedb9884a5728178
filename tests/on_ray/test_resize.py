"""Groups that change their size while they decode: every token as if they had not."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

import actors.group.pending_workers
from actors.async_engine import AsyncRayEngine
from actors.calls.worker_handle import WorkerHandle
from actors.engine import RayEngine
from actors.group.pending_workers import PendingWorkers
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.errors import SettingsError, WorkerLostError
from support.group_under_test import TIMEOUT_S, GroupUnderTest, ReferenceResults
from support.processes import actor_pids, send_signal
from support.tiny_model import tiny_config
from support.waiting import wait_until


@pytest.mark.slow
def test_one_to_three_to_one_while_decoding(reference: ReferenceResults) -> None:
    with RayEngine.from_config(tiny_config(group={"num_workers": 1})) as engine:
        group = GroupUnderTest(engine, reference)
        for workers in (3, 1):
            group.run_batch(6, lambda workers=workers: engine.resize(workers))
            group.run_until(lambda workers=workers: engine.status().workers == workers)
            group.wait_for_workers(workers)
        with pytest.raises(SettingsError, match="got 0 workers"):
            engine.resize(0)


@pytest.mark.long
def test_more_than_there_is_room_for_wait_for_it_and_can_be_withdrawn(reference: ReferenceResults) -> None:
    with RayEngine.from_config(tiny_config(group={"num_workers": 1, "num_cpus": 3.0})) as engine:
        group = GroupUnderTest(engine, reference)
        engine.resize(4)
        group.run_until(lambda: engine.status().workers == 2)
        group.run_batch(3)
        assert engine.status().pending_workers == 2
        engine.resize(1)
        group.wait_for_workers(1)
        free = ray.cluster_resources()["CPU"] - 3
        wait_until(lambda: ray.available_resources()["CPU"] == free, TIMEOUT_S, "the CPUs to be free")


@pytest.mark.long
def test_a_replacement_takes_the_place_of_the_killed_in_a_full_cluster(reference: ReferenceResults) -> None:
    # The CPUs of an earlier test's workers are free before their processes have ended.
    wait_until(lambda: not actor_pids("BranchWorker"), TIMEOUT_S, "the workers of earlier tests to end")
    everything = ray.cluster_resources()["CPU"]
    wait_until(lambda: ray.available_resources().get("CPU") == everything, TIMEOUT_S, "the CPUs to be free")
    half = tiny_config(group={"num_workers": 2, "num_cpus": everything / 2})
    with RayEngine.from_config(half) as engine:
        group = GroupUnderTest(engine, reference)
        # Beyond the places of the group there is no room. A worker that waits for room must not keep out those that
        # have a place.
        engine.resize(3)
        group.run_until(lambda: engine.status().pending_workers == 1)
        first, second = actor_pids("BranchWorker")

        def is_replaced() -> bool:
            """Stays true, unlike the two pending workers on the way there, which a batch may outlast. On a slow machine
            the group may lose the second worker too, by its deadline, and start again: then both are new."""
            status = engine.status()
            newcomers = set(actor_pids("BranchWorker")) - {first, second}
            return (status.workers, status.pending_workers) == (2, 1) and bool(newcomers)

        assert not is_replaced()
        send_signal(first, signal.SIGKILL)
        group.run_until(is_replaced)


@pytest.mark.long
def test_resize_of_the_asynchronous_engine(reference: ReferenceResults) -> None:
    async def main() -> None:
        engine = await AsyncRayEngine.start(tiny_config(group={"num_workers": 1}))
        try:
            await engine.resize(2)
            while (await engine.status()).workers < 2:
                await asyncio.sleep(0.1)
        finally:
            engine.close()

    asyncio.run(main())


class FailingActor:
    """An actor that dies when it loads its model, until a file exists."""

    def __init__(self, fixed: Path) -> None:
        self._fixed = fixed

    def ping(self) -> None:
        """Returns when the actor has started."""

    prepare = ping

    def load_model(self) -> None:
        if not self._fixed.exists():
            ray.actor.exit_actor()


@pytest.mark.long
def test_pending_workers_that_fail_are_tried_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.group.pending_workers, "MAX_FAILURES", 3)
    monkeypatch.setattr(actors.group.pending_workers, "FIRST_PAUSE_S", 0.01)
    fixed = tmp_path / "fixed"
    started = []

    def start() -> WorkerHandle:
        started.append(WorkerHandle((ray.remote(FailingActor).options(num_cpus=0).remote(fixed),)))
        return started[-1]

    async def load_model(worker: WorkerHandle) -> None:
        await asyncio.gather(*worker.call("load_model"))

    async def main() -> None:
        awake = asyncio.Event()
        factory = SimpleNamespace(create=start, kill=WorkerHandle.kill, load_model=load_model)
        pending = PendingWorkers(factory, GroupSettings(), awake.set)
        pending.set_target(1)
        await awake.wait()
        assert pending.ready and pending.take_ready() == []
        assert len(started) == 3 and isinstance(pending.last_error, WorkerLostError)
        pending.set_target(1)
        assert len(pending) == 0
        fixed.touch()
        awake.clear()
        pending.reset_failures()
        pending.set_target(1)
        await awake.wait()
        assert pending.take_ready() == [started[-1]]
        pending.record_joined()
        assert pending.last_error is None

    asyncio.run(main())
    started[-1].kill()
