"""An elastic backend for Ray's collective interface.

Ray's own groups cannot change their membership. This backend is built anew for each
membership ("epoch"), on a stateless torch.distributed process group (Gloo, NCCL or HCCL),
never on the process's default group. It broadcasts K/V, and sums and gathers what the shards of a model have.
"""

from __future__ import annotations

import importlib
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import ray.util
import torch
from ray.util.collective.backend_registry import BackendRegistry, register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp
from torch import Tensor

from lopa_ray.execution import npu

c10d: Any = importlib.import_module("torch.distributed")  # its type stubs lag behind its bindings

BACKEND = "LOPA_ELASTIC"

JOIN_TIMEOUT = timedelta(seconds=30)

POLL_S = 0.05
"""How often a worker that waits for its peers looks whether its master has given the epoch up."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """What an actor needs to join the others of a collective group, for one epoch."""

    epoch: int
    rank: int
    world_size: int
    store: tuple[str, int]
    """Host and port of the master's key-value store."""
    collective: str
    """torch.distributed backend: gloo, nccl or hccl."""
    timeout_s: float
    """A peer that hangs shows after this long; a dead one at once. Well below the master's deadline, so
    that workers which only wait for one that hangs are not taken for lost as well."""
    purpose: str = "kv"
    """Which of the groups of that epoch: kv, or that of the shards of one worker."""

    @property
    def group_name(self) -> str:
        """Carries the rendezvous: it is all that Ray hands to a backend beside rank and size."""
        host, port = self.store
        return f"lopa/{self.collective}/{host}/{port}/{self.epoch}/{self.timeout_s}/{self.purpose}"


def open_store() -> tuple[Any, tuple[str, int]]:
    """The store of a group's rendezvous, served by this process, and its address; kept for the group's life."""
    # Creating a store resolves this host's name backwards, which stalls where DNS is slow.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    host = ray.util.get_node_ip_address()
    store = c10d.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=JOIN_TIMEOUT)
    return store, (host, store.port)


def abandon_epoch(store: Any, epoch: int) -> None:
    """Release the workers that wait for peers of an epoch which cannot come about any more."""
    store.set(_abandoned_key(epoch), b"1")


def _abandoned_key(epoch: int | str) -> str:
    return f"abandoned{epoch}"


def _process_group(name: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A process group that is not registered anywhere; dropping the object closes its connections."""
    if name == "gloo":
        gloo = c10d.ProcessGroupGloo._Options()
        # Without a host name Gloo binds to loopback and fails across nodes.
        gloo._devices = [c10d.ProcessGroupGloo.create_device(hostname=ray.util.get_node_ip_address())]
        gloo._timeout = timeout
        return c10d.ProcessGroupGloo(store, rank, size, gloo)
    if name == "nccl":
        nccl = c10d.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return c10d.ProcessGroupNCCL(store, rank, size, nccl)
    return npu.process_group(store, rank, size, timeout)


class ElasticGroup(BaseGroup):
    """A Ray collective backend for one epoch of a group. It does what groups need, and nothing else."""

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        _, backend, host, port, epoch, timeout, purpose = group_name.split("/")
        self._sums_in_rank_order = backend == "gloo" and world_size > 2
        self._timeout = timedelta(seconds=float(timeout))
        connected: Future[Any] = Future()

        def connect() -> None:
            try:
                store = c10d.TCPStore(host, int(port), is_master=False, timeout=JOIN_TIMEOUT)
                prefixed = c10d.PrefixStore(f"epoch{epoch}/{purpose}", store)
                connected.set_result(_process_group(backend, prefixed, rank, world_size, self._timeout))
            except Exception as error:
                connected.set_exception(error)

        # Connecting blocks until all peers are there, and one that died never will be.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(POLL_S)
        if thread.is_alive():
            # A connection of its own: the other one's is taken while it waits.
            watched = c10d.TCPStore(host, int(port), is_master=False, timeout=JOIN_TIMEOUT)
            while thread.is_alive():
                if watched.check([_abandoned_key(epoch)]):
                    raise RuntimeError(f"epoch {epoch} was given up: a peer was lost while it was formed")
                thread.join(POLL_S)
        self._group: Any = connected.result()

    @classmethod
    def backend(cls) -> str:
        """Name in Ray's registry."""
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Always there; whether Gloo, NCCL or HCCL is shows when a group is made."""
        return True

    def destroy_group(self) -> None:
        """Drop the connections. Closed sockets release peers that wait for this worker."""
        self._group = None

    def broadcast(self, tensors: list[Tensor], broadcast_options: Any = None) -> None:
        """Fill the tensor in place with the root's. Raises RuntimeError if a peer is lost."""
        options = c10d.BroadcastOptions()
        options.rootRank = broadcast_options.root_rank
        options.rootTensor = 0
        self._group.broadcast(tensors, options).wait(self._timeout)

    def allreduce(self, tensors: list[Tensor], allreduce_options: Any = None) -> None:
        """Sum the tensor over all ranks, in place. Raises RuntimeError if a peer is lost, or for other reductions."""
        if allreduce_options is not None and allreduce_options.reduceOp != ReduceOp.SUM:
            raise RuntimeError(f"got {allreduce_options.reduceOp}; the {BACKEND} backend only sums")
        if not self._sums_in_rank_order:
            options = c10d.AllreduceOptions()
            self._group.allreduce(tensors, options).wait(self._timeout)
            return
        # Gloo adds three or more in an order that depends on the place in the tensor: the bits of a row would
        # depend on the rows before it.
        (tensor,) = tensors
        gathered = tensor.new_empty(self.world_size, *tensor.shape)
        self.allgather([list(gathered.unbind())], tensors)
        torch.add(gathered[0], gathered[1], out=tensor)
        for other in gathered[2:]:
            tensor += other

    def allgather(
        self, tensor_lists: list[list[Tensor]], tensors: list[Tensor], allgather_options: Any = None
    ) -> None:
        """Fill the list with all ranks' tensors. Raises RuntimeError if a peer is lost."""
        self._group.allgather(tensor_lists, tensors).wait(self._timeout)

    def _unused(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"the {BACKEND} backend broadcasts, sums and gathers; nothing else")

    barrier = reduce = reducescatter = send = recv = _unused


def register_backend() -> None:
    """Make the backend known to Ray in this process; once, Ray refuses a second time."""
    if not BackendRegistry().is_registered(BACKEND):
        register_collective_backend(BACKEND, ElasticGroup)
