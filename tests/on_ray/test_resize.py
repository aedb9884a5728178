"""Groups that change their size while they decode: every token as if they had not."""

from __future__ import annotations

import signal

import pytest
import ray

from actors.engine import RayEngine
from lopa_ray.errors import SettingsError
from support.group_under_test import GroupUnderTest, ReferenceResults
from support.processes import actor_pids, send_signal
from support.tiny_model import tiny_config
from support.waiting import wait_until


@pytest.mark.medium
def test_one_to_three_to_one_while_decoding(reference: ReferenceResults) -> None:
    with RayEngine.from_config(tiny_config(group={"num_workers": 1})) as engine:
        group = GroupUnderTest(engine, reference)
        for workers in (3, 1):
            group.run_batch(6, lambda workers=workers: engine.resize(workers))
            group.run_until(lambda workers=workers: engine.status().workers == workers)
            group.wait_for_workers(workers)
        with pytest.raises(SettingsError, match="got 0 workers"):
            engine.resize(0)


@pytest.mark.nightly
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
        wait_until(lambda: ray.available_resources()["CPU"] == free, "the CPUs to be free")


@pytest.mark.nightly
def test_a_replacement_takes_the_place_of_the_killed_in_a_full_cluster(reference: ReferenceResults) -> None:
    # The CPUs of an earlier test's workers are free before their processes have ended.
    wait_until(lambda: not actor_pids("BranchWorker"), "the workers of earlier tests to end")
    everything = ray.cluster_resources()["CPU"]
    wait_until(lambda: ray.available_resources().get("CPU") == everything, "the CPUs to be free")
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
