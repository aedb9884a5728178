"""CollectiveBackend: the backend of workers for Ray's collective interface. Ray's own groups cannot change their
membership. This backend is built anew for each membership ("epoch"), on a stateless torch.distributed process group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import cache
from typing import Any

import ray.util
import torch
from ray.util.collective.backend_registry import BackendRegistry, register_collective_backend
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from torch import Tensor

from actors.transfer.process_group import JOIN_TIMEOUT, POLL_S, ProcessGroup, c10d, make_process_group
from actors.transfer.rendezvous import abandoned_key

BACKEND = "LOPA_ELASTIC"


def epoch_watch(host: str, port: int, epoch: str) -> Callable[[], bool]:
    """Whether an epoch was given up. Each call asks the master's store, and raises RuntimeError if that is gone, over a
    connection of its own: others block while they wait."""

    @cache
    def store() -> Any:
        return c10d.TCPStore(host, port, is_master=False, timeout=JOIN_TIMEOUT)

    return lambda: bool(store().check([abandoned_key(epoch)]))


class CollectiveBackend(BaseGroup):
    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        _, backend, host, port, epoch, timeout, purpose = group_name.split("/")
        self._sums_in_rank_order = backend == "gloo" and world_size > 2
        self._abandoned = epoch_watch(host, int(port), epoch)
        connected: Future[ProcessGroup] = Future()

        def connect() -> None:
            try:
                store = c10d.TCPStore(host, int(port), is_master=False, timeout=JOIN_TIMEOUT)
                prefixed = c10d.PrefixStore(f"epoch{epoch}/{purpose}", store)
                limit = timedelta(seconds=float(timeout))
                here = ray.util.get_node_ip_address()
                group = make_process_group(backend, prefixed, rank, world_size, limit, here)
                group.connect(self._abandoned)
                connected.set_result(group)
            except Exception as error:
                connected.set_exception(error)

        # Connecting blocks until all peers connect, and a dead peer never does.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(POLL_S)
        abandoned = epoch_watch(host, int(port), epoch)  # a separate one, because the thread uses the other
        limit_s = float(timeout)
        deadline = time.monotonic() + limit_s
        while thread.is_alive():
            if time.monotonic() > deadline:
                formed = f"epoch {epoch} was not formed within {limit_s:g} s"
                raise RuntimeError(f"{formed}: a peer does not answer")
            if abandoned():
                raise RuntimeError(f"epoch {epoch} was given up: a peer was lost while it was formed")
            thread.join(POLL_S)
        self._group: ProcessGroup | None = connected.result()

    @classmethod
    def backend(cls) -> str:
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        return True  # whether Gloo, NCCL or HCCL is there shows when a group is made

    def destroy_group(self) -> None:
        """End the connections, which releases peers that wait for this worker on sockets; on NCCL they poll."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def broadcast(self, tensors: list[Tensor], broadcast_options: Any = None) -> None:
        """See `ProcessGroup.broadcast`; of the one tensor of the list."""
        (tensor,) = tensors
        self._joined.broadcast(tensor, broadcast_options.root_rank)

    def allreduce(self, tensors: list[Tensor], allreduce_options: Any = None) -> None:
        """See `ProcessGroup.all_reduce`; of the one tensor of the list."""
        (tensor,) = tensors
        if not self._sums_in_rank_order:
            self._joined.all_reduce(tensor)
            return
        # Gloo adds three or more values in an order that depends on their index in the tensor, so the bits of a row
        # would depend on the rows before it.
        gathered = tensor.new_empty(self.world_size, *tensor.shape)
        self._joined.all_gather(list(gathered.unbind()), tensor)
        torch.add(gathered[0], gathered[1], out=tensor)
        for other in gathered[2:]:
            tensor += other

    def allgather(
        self, tensor_lists: list[list[Tensor]], tensors: list[Tensor], allgather_options: Any = None
    ) -> None:
        """See `ProcessGroup.all_gather`; of the one tensor of the list."""
        (gathered,), (tensor,) = tensor_lists, tensors
        self._joined.all_gather(gathered, tensor)

    def wait(self) -> None:
        self._joined.wait(self._abandoned)

    @property
    def _joined(self) -> ProcessGroup:
        if self._group is None:
            raise RuntimeError("this worker has left the group")
        return self._group

    def _unused(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"the {BACKEND} backend broadcasts, sums and gathers; nothing else")

    barrier = reduce = reducescatter = send = recv = _unused


def register_backend() -> None:
    """Make the backend known to Ray in this process; once, Ray refuses a second time."""
    if not BackendRegistry().is_registered(BACKEND):
        register_collective_backend(BACKEND, CollectiveBackend)
