"""Workers of several actors, each with a shard of the model: tokens as in one process, whatever is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import placement_group_table

from actors.transfer.kv_transfer import TRANSFERS
from actors.workers.placement import BundleAllocator, remove_own_groups
from support.fault_injection import FaultInjection
from support.group_under_test import (
    GroupUnderTest,
    ReferenceResults,
    comparable,
    group_with_faults,
    nightly,
    reference_of,
)
from support.processes import actor_pids
from support.tiny_model import PROMPTS, SETTINGS, TINY_EXPERTS, TINY_MODEL, tiny_config
from support.waiting import wait_until

TWO_SHARDS = {"num_workers": 2, "tensor_parallel_size": 2}


@pytest.fixture(
    scope="module",
    params=[TINY_MODEL, *nightly(*TINY_EXPERTS.values())],
    ids=lambda folder: folder.name,
)
def reference(request: pytest.FixtureRequest) -> ReferenceResults:
    """The experts of these models are narrow, so shards have whole ones."""
    return reference_of(request.param)


@pytest.fixture(scope="module")
def group_and_faults(
    tmp_path_factory: pytest.TempPathFactory, reference: ReferenceResults
) -> Iterator[tuple[GroupUnderTest, FaultInjection]]:
    with shards_with_faults(tmp_path_factory.mktemp("faults"), reference, **TWO_SHARDS) as opened:
        yield opened


@contextmanager
def shards_with_faults(
    folder: Path, reference: ReferenceResults, **settings: Any
) -> Iterator[tuple[GroupUnderTest, FaultInjection]]:
    """See `group_with_faults`. Soft inputs amplify the rounding of sums over shards, so results of `dmax` are compared
    with those before any fault."""
    with group_with_faults(folder, reference, **settings) as (group, faults):
        soft = group.engine.generate(PROMPTS, SETTINGS["dmax"])
        of_shards = {(at, "dmax"): comparable(result) for at, result in enumerate(soft)}
        group.reference = reference.with_results(of_shards)
        yield group, faults


@pytest.mark.medium
def test_same_tokens_as_in_one_process(
    group_and_faults: tuple[GroupUnderTest, FaultInjection], reference: ReferenceResults
) -> None:
    group, _ = group_and_faults
    assert len(actor_pids("BranchWorker")) >= 4
    for name in ("two_phase", "single_phase", "sampled", "prefix_cache", "block_diffusion"):
        decoded = group.engine.generate(PROMPTS[:2], SETTINGS[name])
        assert [comparable(result) for result in decoded] == [reference[at, name] for at in range(2)]
    first, second = group.engine.checksums()
    assert first == second and any(slot.spans for slot in first)
    half = len(first) // 2
    assert [slot.spans for slot in first[:half]] == [slot.spans for slot in first[half:]]
    assert [slot.digest for slot in first[:half]] != [slot.digest for slot in first[half:]]


WHILE_ANOTHER_JOINS = ("join", "import_slots", "export_slots", "load")


@pytest.mark.parametrize(
    "point", ["forward", *nightly("step", "source", "receiver", "answer", *WHILE_ANOTHER_JOINS)]
)
@pytest.mark.slow
def test_a_shard_is_killed(group_and_faults: tuple[GroupUnderTest, FaultInjection], point: str) -> None:
    """It takes its worker along; another worker comes, with all its shards."""
    group, faults = group_and_faults
    group.wait_for_workers(2)
    before = set(actor_pids("BranchWorker"))
    faults.inject(point)
    group.run_batch(6, lambda: faults.inject("forward") if point in WHILE_ANOTHER_JOINS else None)
    group.run_until(lambda: not faults.pending)
    group.wait_for_workers(2)
    assert len(before - set(actor_pids("BranchWorker"))) >= 2


class Owner:
    """An actor that has two places for workers as a master does: one reserved, one of its own."""

    def allocate(self) -> None:
        allocator = BundleAllocator(None, tiny_config(group={**TWO_SHARDS, "num_workers": 1}))
        assert [allocator.allocate().own_group is None for _ in range(2)] == [True, False]


def live_placement_groups() -> list[str]:
    return [held["name"] for held in placement_group_table().values() if held["state"] != "REMOVED"]


@pytest.mark.slow
def test_places_of_a_killed_master_are_given_back() -> None:
    owners = [ray.remote(Owner).options(num_cpus=0).remote() for _ in range(2)]
    before = live_placement_groups()
    ray.get([owner.allocate.remote() for owner in owners])
    assert len(live_placement_groups()) == len(before) + 2
    for number, owner in enumerate(owners):
        ray.kill(owner)
        remove_own_groups(owner._actor_id.hex())
        wait_until(lambda left=1 - number: len(live_placement_groups()) == len(before) + left, "a place")


@pytest.mark.nightly
def test_workers_with_shards_come_and_go(group_and_faults: tuple[GroupUnderTest, FaultInjection]) -> None:
    group, _ = group_and_faults
    for size in (1, 3, 2):
        group.engine.resize(size)
        group.run_batch(4)
        group.wait_for_workers(size)


@pytest.mark.nightly
@pytest.mark.parametrize("point", ["forward", "source", "receiver"])
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_shard_hangs(point: str, transfer: str, tmp_path: Path, reference: ReferenceResults) -> None:
    settings = {**TWO_SHARDS, "step_timeout_s": 4.0, "transfer": transfer}
    with shards_with_faults(tmp_path, reference, **settings) as (group, faults):
        group.run_batch(6, lambda: faults.inject(point, sig=signal.SIGSTOP))
        group.run_until(lambda: not faults.pending)
        group.wait_for_workers(2)
        assert all(group.pause_s(moment) < 4.0 + 3.0 for moment in faults.triggered().values())
