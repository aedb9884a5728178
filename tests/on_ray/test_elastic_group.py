"""The collective backend: rebuilt for each membership, broadcast in place, dead peers show."""

from __future__ import annotations

from typing import Any

import pytest
import ray
import torch
from ray.util import collective

from actors.elastic_group import BACKEND, Membership, open_store
from actors.kv_transfer import CollectiveTransfer
from lopa_ray.errors import TransferError

SIZE = 70_000


class Member:
    """Holds a transfer and broadcasts through it."""

    def __init__(self) -> None:
        self.transfer = CollectiveTransfer()
        self.rank = -1

    def join(self, membership: Membership) -> None:
        self.rank = membership.rank
        self.transfer.join(membership)

    def exchange(self, source: int) -> bool:
        payload = torch.full((SIZE,), float(self.rank), dtype=torch.bfloat16)
        self.transfer.exchange(source, payload)
        return bool((payload == source).all())

    def ray_knows(self, membership: Membership) -> bool:
        return collective.is_group_initialized(membership.group_name)

    def refused(self) -> str:
        group = collective.get_group_handle(next(iter(collective.collective._group_mgr._name_group_map)))
        try:
            group.allreduce([torch.zeros(1)])
        except RuntimeError as error:
            return str(error)
        return ""


@pytest.fixture
def members() -> Any:
    remote = ray.remote(Member).options(num_cpus=0.2)
    handles = [remote.remote() for _ in range(3)]
    yield handles
    for handle in handles:
        ray.kill(handle)


def join(handles: list[Any], store: tuple[str, int], epoch: int) -> list[Membership]:
    memberships = [Membership(epoch, rank, len(handles), store, "gloo", 5.0) for rank in range(len(handles))]
    ray.get([h.join.remote(m) for h, m in zip(handles, memberships, strict=True)], timeout=60)
    return memberships


def test_membership_grows_permutes_and_shrinks(members: Any) -> None:
    kept, store = open_store()
    assert kept is not None
    a, b, c = members
    for epoch, group in enumerate(([a, b], [c, a, b], [b, c], [b])):
        memberships = join(group, store, epoch)
        for source in range(len(group)) if len(group) > 1 else ():
            assert all(ray.get([h.exchange.remote(source) for h in group], timeout=30))
        if len(group) > 1:
            assert all(ray.get([h.ray_knows.remote(m) for h, m in zip(group, memberships, strict=True)]))
            assert BACKEND in ray.get(group[0].refused.remote())


def test_a_dead_peer_is_an_error_for_the_others(members: Any) -> None:
    kept, store = open_store()
    assert kept is not None
    join(members, store, 0)
    ray.kill(members[2])
    for call in [h.exchange.remote(2) for h in members[:2]]:
        with pytest.raises(TransferError, match="did not arrive"):
            ray.get(call, timeout=30)
