"""Collectives that run on a device: the host polls for them, and gives up when a peer is lost or hangs.

NCCL's own process group needs GPUs; a fake one stands in for it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

import actors.transfer.collective_backend
import actors.transfer.process_group
from actors.transfer.collective_backend import CollectiveBackend
from actors.transfer.process_group import NCCL_ENVIRONMENT, NCCLGroup, make_process_group
from actors.transfer.rendezvous import Rendezvous, RendezvousStore

CPU = torch.device("cpu")


class FakeWork:
    """A collective on a device: computed, failed, or neither until a peer does its part."""

    def __init__(self, group: FakeNCCL) -> None:
        self._group = group

    def synchronize(self) -> None:
        self._group.calls.append("synchronize")

    def is_completed(self) -> bool:
        return self._group.peers_are_there or self._group.error is not None

    def wait(self, *_: Any) -> None:
        assert self.is_completed(), "the host would sleep in torch"
        if self._group.error is not None:
            raise self._group.error


class FakeNCCL:
    """Stands in for ProcessGroupNCCL."""

    def __init__(self, peers_are_there: bool = True, error: Exception | None = None) -> None:
        self.peers_are_there = peers_are_there
        self.error = error
        self.calls: list[str] = []

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.calls.append(f"connect {device}")

    def broadcast(self, *_: Any) -> FakeWork:
        self.calls.append("broadcast")
        return FakeWork(self)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> FakeWork | None:
        return self._collective("allreduce", options)

    def allgather(self, gathered: Any, tensors: list[torch.Tensor], options: Any) -> FakeWork | None:
        return self._collective("allgather", options)

    def _collective(self, name: str, options: Any) -> FakeWork | None:
        """As of torch: one that is not asynchronous is enqueued on the current stream, and gives no work."""
        self.calls.append(f"{name} on {'its own' if options.asyncOp else 'the current'} stream")
        return FakeWork(self) if options.asyncOp else None

    def abort(self) -> None:
        self.calls.append("abort")


class UnabortableNCCL(FakeNCCL):
    """Its error is logged, and hides no other."""

    def abort(self) -> None:
        super().abort()
        raise RuntimeError("CUDA error")


def group_over(nccl: FakeNCCL, timeout_s: float = 60.0) -> NCCLGroup:
    return NCCLGroup(nccl, timedelta(seconds=timeout_s), CPU)


def never() -> bool:
    return False


def store_is_gone() -> bool:
    raise RuntimeError("connection reset")


def test_the_host_goes_on_until_it_has_to_read() -> None:
    nccl = FakeNCCL(peers_are_there=False)
    group, x = group_over(nccl), torch.zeros(2)
    group.broadcast(x, root=1)
    group.all_reduce(x)
    group.all_gather([x, x], x)
    enqueued = [
        "broadcast",
        "synchronize",
        "allreduce on the current stream",
        "allgather on the current stream",
    ]
    assert nccl.calls == enqueued
    threading.Timer(0.1, lambda: setattr(nccl, "peers_are_there", True)).start()
    group.wait(never)
    group.wait(lambda: pytest.fail("nothing is left to wait for"))
    assert nccl.calls == [*enqueued, "allreduce on its own stream"]


def test_a_broadcast_is_waited_for_without_another_collective() -> None:
    nccl = FakeNCCL()
    group = group_over(nccl)
    group.broadcast(torch.zeros(2), root=1)
    group.wait(never)
    assert nccl.calls == ["broadcast", "synchronize"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("nccl", "timeout_s", "abandoned", "message"),
    [
        (FakeNCCL(peers_are_there=False), 0.2, never, "took longer than 0.2 s"),
        (FakeNCCL(peers_are_there=False), 60.0, lambda: True, "a peer was lost"),
        (FakeNCCL(peers_are_there=False), 60.0, store_is_gone, "connection reset"),
        (UnabortableNCCL(error=RuntimeError("remote process exited")), 60.0, never, "remote process exited"),
    ],
)
def test_waiting_ends_when_a_peer_hangs_is_lost_or_fails(
    nccl: FakeNCCL, timeout_s: float, abandoned: Callable[[], bool], message: str
) -> None:
    group = group_over(nccl, timeout_s)
    group.all_reduce(torch.zeros(1))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=message):
        group.wait(abandoned)
    assert time.monotonic() - began < 5
    group.abort()
    assert nccl.calls.count("abort") == 1


def test_torch_watches_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    class Recorder(FakeNCCL):
        class Options:
            """As of ProcessGroupNCCL."""

        def __init__(self, *_: Any) -> None:
            super().__init__()
            seen.update(os.environ)

    for name in NCCL_ENVIRONMENT:
        monkeypatch.setenv(name, "as a user has it")
    monkeypatch.setattr(actors.transfer.process_group.c10d, "ProcessGroupNCCL", Recorder, raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert isinstance(make_process_group("nccl", None, 0, 1, timedelta(seconds=1), "here"), NCCLGroup)
    assert seen.items() >= NCCL_ENVIRONMENT.items()


# Through the master's store


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> FakeNCCL:
    fake = FakeNCCL()
    monkeypatch.setattr(
        actors.transfer.collective_backend,
        "make_process_group",
        lambda *given: NCCLGroup(fake, given[4], CPU),
    )
    return fake


@pytest.fixture
def store() -> RendezvousStore:
    return RendezvousStore()


@pytest.fixture
def address(store: RendezvousStore) -> tuple[str, int]:
    return asyncio.run(store.address())


def join(epoch: int, address: tuple[str, int]) -> CollectiveBackend:
    return CollectiveBackend(2, 0, Rendezvous(epoch, 0, 2, address, "nccl", 60.0).group_name)


def test_joining_reaches_every_peer(nccl: FakeNCCL, address: tuple[str, int]) -> None:
    joined = join(3, address)
    assert nccl.calls == ["connect cpu", "allreduce on the current stream", "allreduce on its own stream"]
    joined.destroy_group()
    assert nccl.calls[-1] == "abort"
    with pytest.raises(RuntimeError, match="left the group"):
        joined.allreduce([torch.zeros(1)])


@pytest.mark.medium
def test_a_peer_that_does_not_answer_ends_joining_in_time(nccl: FakeNCCL, address: tuple[str, int]) -> None:
    """Connecting blocks within NCCL, where nothing can interrupt it."""
    released = threading.Event()
    nccl.eager_connect_single_device = lambda device: released.wait(30)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"not formed within 0\.5 s"):
        CollectiveBackend(2, 0, Rendezvous(7, 0, 2, address, "nccl", 0.5).group_name)
    assert time.monotonic() - began < 5
    released.set()


def test_a_group_that_cannot_connect_is_aborted(nccl: FakeNCCL, address: tuple[str, int]) -> None:
    nccl.error = RuntimeError("no route to host")
    with pytest.raises(RuntimeError, match="no route"):
        join(8, address)
    assert nccl.calls[-1] == "abort"


@pytest.mark.medium
@pytest.mark.parametrize("while_joining", [True, False])
def test_a_master_that_gives_an_epoch_up_releases_who_waits_in_it(
    nccl: FakeNCCL, store: RendezvousStore, address: tuple[str, int], while_joining: bool
) -> None:
    store.abandon(4)
    if while_joining:
        nccl.peers_are_there = False
    else:
        joined = join(5, address)
        nccl.peers_are_there = False
        joined.allreduce([torch.zeros(1)])
    threading.Timer(0.3, store.abandon, (5,)).start()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="given up"):
        join(5, address) if while_joining else joined.wait()
    assert 0.2 < time.monotonic() - began < 5
    deadline = time.monotonic() + 5
    while "abort" not in nccl.calls:  # by the thread that still connected
        assert time.monotonic() < deadline
        time.sleep(0.01)
