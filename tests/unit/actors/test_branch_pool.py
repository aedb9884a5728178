"""The workers of a group: created where there is room, warmed up before they take part."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actors.calls.worker_handle import WorkerHandle
from actors.transfer.kv_transfer import TRANSFERS, CollectiveTransfer, HostTransfer
from actors.transfer.rendezvous import Rendezvous
from actors.workers.branch_worker import BranchWorker
from actors.workers.worker_factory import WorkerFactory
from lopa_ray.config.group_settings import NEED_AN_ACCELERATOR
from lopa_ray.errors import SettingsError
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_spec import ModelSpec
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
    monkeypatch.setattr("actors.workers.worker_factory.ray.remote", lambda **_: lambda _: cluster)
    factory = WorkerFactory(tiny_spec(group={"num_workers": 1}))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no actor"):
            factory.create()
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
def test_shards_compile_together_before_they_take_part(
    compiled: bool, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = dataclasses.replace(DEVICES["cpu"], compiles_kernels=compiled)
    monkeypatch.setitem(DEVICES, "cpu", device)
    group = {
        "num_workers": 1,
        "tensor_parallel_size": shards,
        "start_timeout_s": 600.0,
        "step_timeout_s": 2.0,
    }
    factory = WorkerFactory(tiny_spec(model={"load_format": "dummy"}, group=group))
    workers = [[FakeShard() for _ in range(shards)] for _ in range(2)]
    for of_worker in workers:
        assert asyncio.run(factory.load_model(WorkerHandle(tuple(of_worker)))) == "info"
    if not (compiled and shards > 1):
        assert not any(shard.rendezvous for of_worker in workers for shard in of_worker)
        return
    joined = [[rendezvous for shard in of_worker for rendezvous in shard.rendezvous] for of_worker in workers]
    for of_worker in joined:
        assert [(r.rank, r.world_size, r.timeout_s) for r in of_worker] == [(0, 2, 600.0), (1, 2, 600.0)]
        assert len({r.epoch for r in of_worker}) == 1
    assert joined[0][0].group_name != joined[1][0].group_name
    assert all(r.epoch < -1 for of_worker in joined for r in of_worker)  # no epoch of a step


class TimedShard:
    """Stands in for an actor that has measured what auto stands for."""

    def __init__(self, resolved: ModelSpec) -> None:
        self.resolved = resolved
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        async def remote(*given: Any) -> ModelSpec:
            self.calls.append((name, *given))
            return self.resolved

        return SimpleNamespace(remote=remote)


@pytest.mark.parametrize(
    ("model", "measured"),
    [
        pytest.param({"attention": "auto"}, True, id="attention"),
        pytest.param({"attention": "sdpa"}, False, id="another"),
    ],
)
def test_workers_agree_on_what_is_the_fastest_on_the_first(
    model: dict[str, str], measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        DEVICES, "cpu", dataclasses.replace(DEVICES["cpu"], timed_attention=("sdpa", "reference"))
    )
    group = {"num_workers": 2, "tensor_parallel_size": 2}
    spec = tiny_spec(model={**model, "load_format": "dummy"}, group=group)
    factory = WorkerFactory(spec)
    attention = ("reference", "sdpa", "sdpa", "sdpa")
    shards = [TimedShard(tiny_spec(model={"attention": name}, group=group)) for name in attention]

    async def load() -> None:
        workers = WorkerHandle(tuple(shards[:2])), WorkerHandle(tuple(shards[2:]))
        await asyncio.gather(*map(factory.load_model, workers))

    asyncio.run(load())
    agreed = [("use", shards[0].resolved)] if measured else []
    asked = [("resolve_auto",)] if measured else []
    assert [shard.calls for shard in shards] == [
        [*(asked if at == 0 else []), *agreed, ("load_model", None)] for at in range(4)
    ]


@pytest.mark.parametrize(
    ("config", "transfer"),
    [
        ({}, "collective"),
        ({"group": {"num_accelerators": 0.5}}, "collective"),
        ({"group": {"num_accelerators": 0.5}, "model": {"device": "cuda"}}, "object_store"),
        ({"model": {"device": "cuda"}}, "collective"),
        *(({"group": {"transfer": name}}, name) for name in TRANSFERS),
    ],
)
def test_workers_that_share_an_accelerator_form_no_collective(config: dict[str, Any], transfer: str) -> None:
    assert tiny_spec(**config).config.transfer == transfer


@pytest.mark.parametrize("name", sorted(NEED_AN_ACCELERATOR))
def test_a_transfer_between_accelerators_is_refused_where_workers_share_one(name: str) -> None:
    with pytest.raises(
        SettingsError, match=f"group.transfer {name} .*cannot form a collective; use object_store"
    ):
        tiny_spec(group={"num_accelerators": 0.5, "transfer": name}, model={"device": "cuda"})


class OnDevice:
    """Stands in for a payload on an accelerator."""

    def __init__(self, value: float) -> None:
        self.value = torch.tensor([value])

    def cpu(self) -> torch.Tensor:
        return self.value.clone()

    def copy_(self, other: torch.Tensor) -> None:
        self.value = other


def test_payloads_of_workers_that_share_an_accelerator_travel_through_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_host = {0: 3.0, 1: 4.0}

    def broadcast(self: CollectiveTransfer, payloads: dict[int, torch.Tensor]) -> None:
        for source, payload in payloads.items():
            payload.fill_(on_host[source])

    monkeypatch.setattr(CollectiveTransfer, "broadcast", broadcast)
    transfer = HostTransfer()
    transfer.rank = 1
    payloads: Any = {0: OnDevice(7.0), 1: OnDevice(4.0)}
    transfer.broadcast(payloads)
    assert {source: payload.value.item() for source, payload in payloads.items()} == on_host


def test_a_worker_uses_what_it_is_told_to() -> None:
    worker = BranchWorker(tiny_spec(group={"num_cpus": 3.0}))
    worker.prepare()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads == 3
    worker.use(tiny_spec(model={"dtype": "bfloat16", "attention": "reference"}))
    worker.load_model(None)
    assert worker._runner.attention == PackedAttention()
    assert worker._runner.model.embed.weight.dtype == torch.bfloat16
