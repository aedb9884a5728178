"""Groups that change their size while they decode: every token as if they had not."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

import actors.pending_workers
from actors.async_engine import AsyncRayEngine
from actors.engine import RayEngine
from actors.pending_workers import PendingWorkers
from actors.worker_handle import WorkerHandle
from lopa_ray.errors import SettingsError, WorkerLostError
from support.groups import config
from support.trials import PATIENCE_S, Oracle, Trial, actor_pids, end


def test_one_to_four_to_two_to_one_while_decoding(oracle: Oracle) -> None:
    with RayEngine.from_config(config(group={"num_workers": 1})) as engine:
        trial = Trial(engine, oracle)
        for workers in (4, 2, 1):
            trial.batch(6, lambda workers=workers: engine.resize(workers))
            trial.until(lambda workers=workers: engine.status().workers == workers)
            trial.until_there_are(workers)
        with pytest.raises(SettingsError, match="got 0 workers"):
            engine.resize(0)


@pytest.mark.long
def test_more_than_there_is_room_for_wait_for_it_and_can_be_withdrawn(oracle: Oracle) -> None:
    with RayEngine.from_config(config(group={"num_workers": 1, "num_cpus": 3.0})) as engine:
        trial = Trial(engine, oracle)
        engine.resize(4)
        trial.until(lambda: engine.status().workers == 2)
        trial.batch(3)
        assert engine.status().pending_workers == 2
        engine.resize(1)
        trial.until_there_are(1)
        free = ray.cluster_resources()["CPU"] - 3
        wait(lambda: ray.available_resources()["CPU"] == free)


def test_a_replacement_takes_the_place_of_the_killed_in_a_full_cluster(oracle: Oracle) -> None:
    everything = ray.cluster_resources()["CPU"]
    wait(lambda: ray.available_resources().get("CPU") == everything)
    half = config(group={"num_workers": 2, "num_cpus": everything / 2})
    with RayEngine.from_config(half) as engine:
        trial = Trial(engine, oracle)
        # Beyond the places of the group there is no room; whoever waits for some must not keep the places' own out.
        engine.resize(3)
        trial.until(lambda: engine.status().pending_workers == 1)
        end(actor_pids("BranchWorker")[0], signal.SIGKILL)
        trial.until(lambda: engine.status().pending_workers == 2)
        trial.until(lambda: engine.status().workers == 2)


@pytest.mark.long
def test_resize_of_the_asynchronous_engine(oracle: Oracle) -> None:
    async def main() -> None:
        engine = await AsyncRayEngine.start(config(group={"num_workers": 1}))
        try:
            await engine.resize(2)
            while (await engine.status()).workers < 2:
                await asyncio.sleep(0.1)
        finally:
            engine.close()

    asyncio.run(main())


class Stubborn:
    """An actor that dies when it loads its model, unless a file says otherwise."""

    def __init__(self, cured: Path) -> None:
        self._cured = cured

    def ping(self) -> None:
        """Is there."""

    def load_model(self) -> None:
        if not self._cured.exists():
            ray.actor.exit_actor()


@pytest.mark.long
def test_pending_workers_that_fail_are_tried_again_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.pending_workers, "MAX_FAILURES", 3)
    monkeypatch.setattr(actors.pending_workers, "FIRST_PAUSE_S", 0.01)
    cured = tmp_path / "cured"
    created = []

    def create() -> WorkerHandle:
        created.append(WorkerHandle((ray.remote(Stubborn).options(num_cpus=0).remote(cured),)))
        return created[-1]

    async def load_model(worker: WorkerHandle) -> None:
        await asyncio.gather(*worker.call("load_model"))

    async def main() -> None:
        awake = asyncio.Event()
        pending = PendingWorkers(create, WorkerHandle.kill, load_model, PATIENCE_S, awake.set)
        pending.set_target(1)
        await awake.wait()
        assert pending.ready and pending.take_ready() == []
        assert len(created) == 3 and isinstance(pending.last_error, WorkerLostError)
        pending.set_target(1)
        assert len(pending) == 0
        cured.touch()
        awake.clear()
        pending.reset_failures()
        pending.set_target(1)
        await awake.wait()
        assert pending.take_ready() == [created[-1]]
        pending.record_joined()
        assert pending.last_error is None

    asyncio.run(main())
    created[-1].kill()


def wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.1)
