"""NCCL process groups as the collective backend makes them: built, used, aborted and built again in one process."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch

from actors.transfer.process_group import NCCLGroup, c10d, make_process_group

DEVICE = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def store() -> Any:
    return c10d.HashStore()


def never() -> bool:
    return False


def joined(store: Any, epoch: int) -> NCCLGroup:
    """A group of one."""
    group = make_process_group(
        "nccl", c10d.PrefixStore(f"epoch{epoch}", store), 0, 1, timedelta(seconds=30), "localhost"
    )
    assert isinstance(group, NCCLGroup)
    group.connect(never)
    return group


def test_one_group_after_the_other_in_one_process(store: Any) -> None:
    for epoch in range(3):
        group = joined(store, epoch)
        x = torch.arange(1000.0, device=DEVICE)
        gathered = torch.zeros(1, 1000, device=DEVICE)
        group.broadcast(x, 0)
        group.all_reduce(x)
        group.all_gather(list(gathered.unbind()), x)
        group.wait(never)
        assert torch.equal(gathered[0].cpu(), torch.arange(1000.0))
        group.abort()


def test_a_group_that_is_given_up_is_aborted_and_another_one_works(store: Any) -> None:
    group = joined(store, 10)
    backend, x = group._group, torch.ones(2**20, device=DEVICE)
    began = time.monotonic()
    torch.cuda._sleep(int(1e9))  # the master is asked only where waiting takes a while
    group.all_reduce(x)
    with pytest.raises(RuntimeError, match="given up"):
        group.wait(lambda: True)
    assert time.monotonic() - began < 5
    with pytest.raises(RuntimeError):  # its communicator is gone
        backend.allreduce([x], c10d.AllreduceOptions())
    group = joined(store, 11)
    group.all_reduce(torch.ones(1, device=DEVICE))
    group.wait(never)
    group.abort()
