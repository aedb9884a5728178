"""ProcessGroup: the collectives that groups need, over torch.distributed's Gloo, NCCL or HCCL.

NCCL enqueues on the device's stream, and a lost peer shows only where the host waits for the device. torch's own answer
is to end the process. So none of torch's threads watches here: `wait` polls, until a deadline or until the master has
given the epoch up.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from lopa_ray.errors import SettingsError
from lopa_ray.execution import npu

c10d: Any = importlib.import_module("torch.distributed")  # its type stubs lag behind its bindings

JOIN_TIMEOUT = timedelta(seconds=30)

POLL_S = 0.05  # between two checks by a worker that waits whether its master has abandoned the epoch

logger = logging.getLogger("lopa.group")

DEVICE_POLL_S = 0.00005  # seconds between two checks by the host whether the device has finished a collective

NCCL_ENVIRONMENT = {
    # With this value torch starts neither the thread that ends the process when a peer dies, nor its watchdog.
    "TORCH_NCCL_BLOCKING_WAIT": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    # torch requests a dump through the store, and the request would outlive its epoch.
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    # A connection attempt to a dead peer ends after the timeout.
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": f"{JOIN_TIMEOUT.total_seconds():.0f}",
    # All of NCCL's algorithms connect while the group is joined, not at their first use.
    "NCCL_RUNTIME_CONNECT": "0",
}
"""Environment variables that ProcessGroupNCCL and NCCL read when a group is made."""


class ProcessGroup:
    """The collectives of one epoch, in place on tensors of the backend's device. Gloo and HCCL wait for each."""

    def __init__(self, group: Any, timeout: timedelta) -> None:
        """`group`: a `torch.distributed` backend that is registered nowhere. `timeout`: of each collective."""
        self._group = group
        self._timeout = timeout
        self._sum_options = c10d.AllreduceOptions()
        self._gather_options = c10d.distributed_c10d.AllgatherOptions()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Fill the tensor, of any shape [...] and dtype, with the root's. Raises RuntimeError if a peer is lost."""
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._finish(self._group.broadcast([tensor], options))

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum the tensor, of one shape [...] and dtype on all ranks, in place."""
        self._finish(self._group.allreduce([tensor], self._sum_options))

    def all_gather(self, gathered: list[Tensor], tensor: Tensor) -> None:
        """Fill the list [ranks] with all ranks' tensors, of one shape and dtype."""
        self._finish(self._group.allgather([gathered], [tensor], self._gather_options))

    def _finish(self, work: Any) -> None:
        """Order the collective before the caller's next work, on the device or on the host."""
        work.wait(self._timeout)

    def connect(self, abandoned: Callable[[], bool]) -> None:
        """Reach every peer. Raises RuntimeError if one is not there, or if `abandoned` becomes true meanwhile."""

    def wait(self, abandoned: Callable[[], bool]) -> None:
        """Return when all collectives so far are computed, so that the host can read what depends on them. Raises
        RuntimeError at the timeout, when a peer is lost, and when `abandoned` becomes true."""

    def abort(self) -> None:
        """End the connections, and all waits for them in this process. The group cannot be used afterwards."""
        self._group = None


class NCCLGroup(ProcessGroup):
    """NCCL: collectives are enqueued, and the host waits only in `wait`. Sums and gathers are enqueued on the current
    stream: on NCCL's own, which asynchronous collectives use, each would take two events and two waits more. torch
    gives nothing to wait for then, so `wait` enqueues an asynchronous sum."""

    def __init__(self, group: Any, timeout: timedelta, device: torch.device) -> None:
        super().__init__(group, timeout)
        self._sum_options.asyncOp = self._gather_options.asyncOp = False
        self._device = device
        self._is_idle = True  # whether nothing was enqueued since the last `wait`
        self._last: Any = None  # the last collective, if it is asynchronous; others are done before it

    def _finish(self, work: Any) -> None:
        if work is not None:
            work.synchronize()  # the stream waits, not the host
        self._last, self._is_idle = work, False

    def connect(self, abandoned: Callable[[], bool]) -> None:
        # Without this the first collective would connect, within a step.
        try:
            self._group.eager_connect_single_device(self._device)
            self.all_reduce(torch.zeros(1, device=self._device))
            self.wait(abandoned)
        except BaseException:
            self.abort()
            raise

    def wait(self, abandoned: Callable[[], bool]) -> None:
        if self._is_idle:
            return
        work, self._last, self._is_idle = self._last, None, True
        try:
            if work is None:
                work = self._group.allreduce([torch.zeros(1, device=self._device)], c10d.AllreduceOptions())
            self._poll(work, abandoned)
            work.wait()  # raises the error of a failed collective
        except RuntimeError:
            self.abort()
            raise

    def _poll(self, work: Any, abandoned: Callable[[], bool]) -> None:
        """Return when the collective is computed or has failed. Raises RuntimeError where it may never be."""
        timeout_s = self._timeout.total_seconds()
        began = looked = time.monotonic()
        while not work.is_completed():
            time.sleep(DEVICE_POLL_S)
            now = time.monotonic()
            if now > began + timeout_s:
                raise RuntimeError(f"a collective took longer than {timeout_s:g} s")
            if now > looked + POLL_S:
                looked = now
                if abandoned():
                    raise RuntimeError("the epoch was given up: a peer was lost")

    def abort(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            try:
                group.abort()
            except RuntimeError:  # the group is of no use either way
                logger.exception("an NCCL group was not aborted cleanly")


def make_process_group(
    name: str, store: Any, rank: int, size: int, timeout: timedelta, host: str
) -> ProcessGroup:
    """A group of the torch.distributed backend gloo, nccl or hccl; blocks until all peers are there. `host`: this
    node's address, for Gloo. Raises SettingsError for another backend."""
    if name == "gloo":
        gloo = c10d.ProcessGroupGloo._Options()
        # Without a host name Gloo binds to loopback and fails across nodes.
        gloo._devices = [c10d.ProcessGroupGloo.create_device(hostname=host)]
        gloo._timeout = timeout
        return ProcessGroup(c10d.ProcessGroupGloo(store, rank, size, gloo), timeout)
    if name == "nccl":
        os.environ.update(NCCL_ENVIRONMENT)
        nccl = c10d.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        device = torch.device("cuda", torch.cuda.current_device())
        return NCCLGroup(c10d.ProcessGroupNCCL(store, rank, size, nccl), timeout, device)
    if name == "hccl":
        return ProcessGroup(npu.process_group(store, rank, size, timeout), timeout)
    raise SettingsError(f"collective backend: got {name!r}; allowed: gloo, nccl or hccl")
