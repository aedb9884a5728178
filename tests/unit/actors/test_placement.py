"""Whether a group fits on the nodes of a cluster, and what is said if it never will."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actors.workers.placement import Allocation, BundleAllocator, actor_options, check_nodes, worker_bundle
from lopa_ray.engine.config import Config
from lopa_ray.errors import CapacityError, SettingsError


def node(address: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive, "Resources": {"memory": 1e9, **resources}}


def config(device: str = "cpu", **group: Any) -> Config:
    return Config.parse({"model": {"device": device}, "group": group})


GPUS = [node("10.0.0.1", CPU=16, GPU=8), node("10.0.0.2", CPU=16, GPU=8), node("10.0.0.3", CPU=64)]


@pytest.mark.parametrize(
    ("device", "group", "nodes"),
    [
        ("cuda", {"num_workers": 64, "num_accelerators": 0.25, "num_cpus": 0.1}, GPUS),
        ("cuda", {"num_workers": 2, "tensor_parallel_size": 8}, GPUS),
        ("cpu", {"num_workers": 30, "num_cpus": 0.1}, [node("10.0.0.1", CPU=3)]),
        ("cpu", {"num_workers": 1000, "num_cpus": 0.0}, [node("10.0.0.1")]),
        ("npu", {"num_workers": 8, "resources": {"fast": 1.0}}, [node("10.0.0.1", CPU=8, NPU=8, fast=8)]),
        ("cuda", {"num_workers": 99, "wait_for_nodes": True}, GPUS),
    ],
)
def test_what_fits_is_let_through(device: str, group: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    check_nodes(config(device, **group), nodes)


@pytest.mark.parametrize(
    ("device", "group", "nodes", "message"),
    [
        # Together the nodes have enough, but no worker can be cut in two.
        (
            "cuda",
            {"num_workers": 3, "tensor_parallel_size": 6},
            GPUS,
            r"3 workers of 6 CPU, 6 GPU each do not fit: 10.0.0.1 with 16 CPU, 8 GPU has room for 1; 10.0.0.2 with "
            r"16 CPU, 8 GPU has room for 1; 10.0.0.3 with 64 CPU, 0 GPU has room for 0; .*wait_for_nodes",
        ),
        ("cpu", {"num_workers": 1, "resources": {"fast": 1.0}}, GPUS, "64 CPU, 0 fast has room for 0"),
        (
            "cpu",
            {"num_workers": 2},
            [node("10.0.0.1", CPU=1), node("10.0.0.2", False, CPU=8)],
            "room for 1; l",
        ),
    ],
)
def test_what_will_never_fit_is_refused_with_what_there_is(
    device: str, group: dict[str, Any], nodes: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(CapacityError, match=message):
        check_nodes(config(device, **group), nodes)


def test_actors_ask_for_what_their_places_hold() -> None:
    group = {"num_cpus": 0.5, "num_accelerators": 0.25, "resources": {"fast": 1.0}}
    assert worker_bundle(config("cuda", **group)) == {"CPU": 0.5, "GPU": 0.25, "fast": 1.0}
    gpu, npu = actor_options(config("cuda", **group)), actor_options(config("npu", **group))
    none = actor_options(config(num_cpus=0.0))
    assert (gpu["num_cpus"], gpu["num_gpus"], gpu["resources"]) == (0.5, 0.25, {"fast": 1.0})
    assert (npu["num_cpus"], npu["resources"]) == (0.5, {"NPU": 0.25, "fast": 1.0}) and "num_gpus" not in npu
    assert none["num_cpus"] == 0.0 and "resources" not in none


def test_a_worker_takes_the_place_of_one_that_left_and_others_go_anywhere() -> None:
    allocator = BundleAllocator(None, config(num_workers=2))
    first, second = allocator.allocate(), allocator.allocate()
    assert first.options == second.options == {} and (first.bundle, second.bundle) == (0, 1)
    third = allocator.allocate()
    assert third.options["scheduling_strategy"].placement_group is None
    allocator.release(third)
    assert allocator.allocate().bundle is None
    allocator.release(first)
    assert allocator.allocate().bundle == 0
    assert allocator.allocate().bundle is None


def index_of(allocation: Allocation) -> int:
    """The bundle that Ray is told."""
    index: int = allocation.options["scheduling_strategy"].placement_group_bundle_index
    return index


def test_shards_of_a_worker_share_its_place_on_one_node() -> None:
    group = {"num_workers": 2, "tensor_parallel_size": 4, "num_cpus": 0.5, "resources": {"fast": 1.0}}
    wanted = config("cuda", **group)
    assert worker_bundle(wanted) == {"CPU": 2.0, "GPU": 4.0, "fast": 4.0}
    assert actor_options(wanted)["num_gpus"] == 1.0
    with pytest.raises(CapacityError, match="2 workers of 1 CPU, 16 GPU each do not fit"):
        check_nodes(config("cuda", num_workers=2, tensor_parallel_size=16, num_cpus=1 / 16), GPUS)
    front, place = {"CPU": 0.1}, {"CPU": 2.0, "GPU": 4.0, "fast": 4.0}
    for specs, expected in (([place, place], [0, 1]), ([front, place, place], [1, 2])):
        allocator = BundleAllocator(SimpleNamespace(bundle_specs=specs), wanted)
        allocations = [allocator.allocate() for _ in expected]
        assert [index_of(allocation) for allocation in allocations] == expected
        allocator.release(allocations[0])
        assert index_of(allocator.allocate()) == expected[0]
    allocator = BundleAllocator(SimpleNamespace(bundle_specs=[front, place]), wanted)
    with pytest.raises(CapacityError, match="has 1 such bundles"):
        allocator.allocate()


def test_shards_need_accelerators_of_their_own() -> None:
    with pytest.raises(SettingsError, match=r"tensor_parallel_size 2 with num_accelerators 0\.5"):
        config("cuda", tensor_parallel_size=2, num_accelerators=0.5)
    config("cpu", tensor_parallel_size=2, num_accelerators=0.5)
    with pytest.raises(SettingsError, match=r"tensor_parallel_size 2 with num_cpus 0: .*; set num_cpus"):
        config("cpu", tensor_parallel_size=2, num_cpus=0.0)
    config("cpu", tensor_parallel_size=2, num_cpus=0.0, resources={"fast": 0.5})
