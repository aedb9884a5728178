"""The workers of a group: created where there is room, warmed up before they take part."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.branch_pool import BranchPool
from actors.elastic_group import Rendezvous
from actors.worker_handle import WorkerHandle
from support.tiny_model import tiny_config


class FullCluster:
    """Stands in for an actor class, and can create no actor."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def options(self, **options: Any) -> FullCluster:
        self.asked.append(options)
        return self

    def remote(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("no actor")


def test_a_worker_that_cannot_be_created_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FullCluster()
    monkeypatch.setattr("actors.branch_pool.ray.remote", lambda _: cluster)
    pool = BranchPool(tiny_config(group={"num_workers": 1}))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no actor"):
            pool.create_worker()
    first, second = cluster.asked
    assert first == second  # a worker without a bundle would go anywhere in the cluster


class FakeShard:
    """Stands in for an actor with a shard: loads nothing, and records how it is warmed up."""

    def __init__(self) -> None:
        self.rendezvous: list[Rendezvous] = []
        self.warm_up = self
        self.load_model = self

    async def remote(self, given: Rendezvous | None) -> str:
        if given is not None:
            self.rendezvous.append(given)
        return "info"


@pytest.mark.parametrize(("compiled", "shards"), [(True, 2), (True, 1), (False, 2)])
def test_shards_compile_together_before_they_take_part(compiled: bool, shards: int) -> None:
    group = {
        "num_workers": 1,
        "tensor_parallel_size": shards,
        "start_timeout_s": 600.0,
        "step_timeout_s": 2.0,
    }
    pool = BranchPool(tiny_config(model={"compile": compiled, "load_format": "dummy"}, group=group))
    workers = [[FakeShard() for _ in range(shards)] for _ in range(2)]
    for each in workers:
        assert asyncio.run(pool.load_model(WorkerHandle(tuple(each)))) == "info"
    if not (compiled and shards > 1):
        assert not any(shard.rendezvous for each in workers for shard in each)
        return
    joined = [[rendezvous for shard in each for rendezvous in shard.rendezvous] for each in workers]
    for each in joined:
        assert [(r.rank, r.world_size, r.timeout_s) for r in each] == [(0, 2, 600.0), (1, 2, 600.0)]
        assert len({r.epoch for r in each}) == 1
    assert joined[0][0].group_name != joined[1][0].group_name
    assert all(r.epoch < pool.epoch for each in joined for r in each)  # no epoch of a step
