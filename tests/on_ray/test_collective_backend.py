"""The collective backend: rebuilt for each membership, several groups at a time, dead peers show."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import ray
import torch
from ray.util import collective

from actors.transfer.collective_backend import BACKEND
from actors.transfer.kv_transfer import CollectiveTransfer
from actors.transfer.rendezvous import Rendezvous, RendezvousStore
from actors.transfer.tensor_parallel_group import RayTensorParallelGroup
from lopa_ray.errors import TransferError

pytestmark = pytest.mark.slow

SIZE = 70_000


class Member:
    """Joins a group for K/V transfer and a tensor-parallel group."""

    def __init__(self) -> None:
        self.transfer = CollectiveTransfer()
        self.rank = -1

    def join_tensor_parallel(self, rendezvous: Rendezvous) -> None:
        self.tp_group = RayTensorParallelGroup(rendezvous.rank, rendezvous.world_size)
        self.tp_group.join(rendezvous)

    def sum_and_gather(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        x = shard_tensor(self.tp_group.rank, shape, dtype)
        with torch.inference_mode():
            return self.tp_group.all_reduce(x.t()), self.tp_group.all_gather(x.t())

    def join(self, rendezvous: Rendezvous) -> None:
        self.rank = rendezvous.rank
        self.transfer.join(rendezvous)

    def broadcast(self, source: int) -> bool:
        tensor = torch.full((SIZE,), float(self.rank), dtype=torch.bfloat16)
        self.transfer.broadcast({source: tensor})
        return bool((tensor == source).all())

    def is_registered(self, rendezvous: Rendezvous) -> bool:
        return collective.is_group_initialized(rendezvous.group_name)

    def reduce_error(self) -> str:
        group = collective.get_group_handle(next(iter(collective.collective._group_mgr._name_group_map)))
        try:
            group.reduce([torch.zeros(1)])
        except RuntimeError as error:
            return str(error)
        return ""


def shard_tensor(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What a shard contributes."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(rank)) * 50).to(dtype)


@pytest.fixture
def members() -> Any:
    remote = ray.remote(Member).options(num_cpus=0.2)
    handles = [remote.remote() for _ in range(3)]
    # The limit of a rendezvous is for members that run: one that still imports torch is late on a busy machine.
    ray.get([handle.__ray_ready__.remote() for handle in handles])
    yield handles
    for handle in handles:
        ray.kill(handle)


def join(handles: list[Any], store: tuple[str, int], epoch: int) -> list[Rendezvous]:
    rendezvous = [Rendezvous(epoch, rank, len(handles), store, "gloo", 5.0) for rank in range(len(handles))]
    ray.get([h.join.remote(r) for h, r in zip(handles, rendezvous, strict=True)], timeout=60)
    return rendezvous


def test_membership_grows_permutes_and_shrinks(members: Any) -> None:
    serving = RendezvousStore()
    store = asyncio.run(serving.address())
    a, b, c = members
    for epoch, group in enumerate(([a, b], [c, a, b], [b, c], [b])):
        rendezvous = join(group, store, epoch)
        for source in range(len(group)) if len(group) > 1 else ():
            assert all(ray.get([h.broadcast.remote(source) for h in group], timeout=30))
        if len(group) > 1:
            assert all(ray.get([h.is_registered.remote(r) for h, r in zip(group, rendezvous, strict=True)]))
            assert BACKEND in ray.get(group[0].reduce_error.remote())


@pytest.mark.nightly
def test_a_dead_peer_is_an_error_for_the_others(members: Any) -> None:
    serving = RendezvousStore()
    store = asyncio.run(serving.address())
    join(members, store, 0)
    ray.kill(members[2])
    for call in [h.broadcast.remote(2) for h in members[:2]]:
        with pytest.raises(TransferError, match="did not arrive"):
            ray.get(call, timeout=30)


@pytest.mark.parametrize("size", [3, pytest.param(2, marks=pytest.mark.nightly)])
def test_sums_and_gathers_are_the_same_everywhere(members: Any, size: int) -> None:
    serving = RendezvousStore()
    store = asyncio.run(serving.address())
    group = members[:size]
    join(group, store, 0)  # another group of the same epoch
    rendezvous = [Rendezvous(0, rank, size, store, "gloo", 5.0, "shards") for rank in range(size)]
    ray.get([h.join_tensor_parallel.remote(r) for h, r in zip(group, rendezvous, strict=True)], timeout=60)
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.float64):
        parts = torch.stack([shard_tensor(rank, (33, 7), dtype).t() for rank in range(size)])
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total = total + part  # in order of rank: the bits of a number do not depend on where it stands
        for summed, gathered in ray.get([h.sum_and_gather.remote((33, 7), dtype) for h in group], timeout=60):
            assert torch.equal(summed, total)
            assert torch.equal(gathered, parts)
    assert all(ray.get([h.broadcast.remote(1) for h in group], timeout=30))
    ray.kill(group[1])
    with pytest.raises(TransferError, match="lost touch"):
        ray.get(group[0].sum_and_gather.remote((3, 3), torch.float32), timeout=30)
