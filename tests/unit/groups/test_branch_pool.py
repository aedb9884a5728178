"""The workers of a group: created where there is room, warmed up before they take part."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from actors.branch_pool import BranchPool
from actors.branch_worker import BranchWorker
from actors.elastic_group import Rendezvous
from actors.worker_handle import WorkerHandle
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.device import DEVICES
from support.tiny_model import tiny_spec


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
    pool = BranchPool(tiny_spec(group={"num_workers": 1}))
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


@pytest.mark.parametrize(("compiled", "shards"), [("layers", 2), ("kernels", 2), ("layers", 1), ("", 2)])
def test_shards_compile_together_before_they_take_part(
    compiled: str, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = dataclasses.replace(DEVICES["cpu"], compiles_kernels=compiled == "kernels")
    monkeypatch.setitem(DEVICES, "cpu", device)
    group = {
        "num_workers": 1,
        "tensor_parallel_size": shards,
        "start_timeout_s": 600.0,
        "step_timeout_s": 2.0,
    }
    pool = BranchPool(tiny_spec(model={"compile": compiled == "layers", "load_format": "dummy"}, group=group))
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


class TimedShard:
    """Stands in for an actor on a device whose attention backends are timed."""

    def __init__(self, fastest: str) -> None:
        self.fastest = fastest
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        async def remote(*given: Any) -> str:
            self.calls.append((name, *given))
            return self.fastest

        return SimpleNamespace(remote=remote)


@pytest.mark.parametrize("attention", ["auto", "sdpa"])
def test_workers_agree_on_the_attention_that_is_the_fastest_on_the_first(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICES, "cpu", dataclasses.replace(DEVICES["cpu"], timed_attention=("sdpa", "flex")))
    group = {"num_workers": 2, "tensor_parallel_size": 2}
    pool = BranchPool(tiny_spec(model={"attention": attention, "load_format": "dummy"}, group=group))
    shards = [TimedShard(name) for name in ("flex", "sdpa", "sdpa", "sdpa")]

    async def load() -> None:
        workers = WorkerHandle(tuple(shards[:2])), WorkerHandle(tuple(shards[2:]))
        await asyncio.gather(*map(pool.load_model, workers))

    asyncio.run(load())
    agreed = [("use_attention", "flex")] if attention == "auto" else []
    asked = [("resolve_attention",)] if attention == "auto" else []
    assert [shard.calls for shard in shards] == [
        [*(asked if at == 0 else []), *agreed, ("load_model", None)] for at in range(4)
    ]


def test_a_worker_uses_the_attention_that_it_is_told_to() -> None:
    worker = BranchWorker(tiny_spec(), uses_store=False)
    assert worker.resolve_attention() == "sdpa"
    worker.use_attention("reference")
    worker.load_model(None)
    assert worker._runner.attention == PackedAttention()
