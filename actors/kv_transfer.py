"""KVTransfer: how a winner's K/V reaches the other workers of a group.

Masters have this module too, and start without torch, so the transfers import it where workers use them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from actors.rendezvous import Rendezvous
from actors.worker_handle import WorkerHandle
from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.protocol.plan import StepPlan

if TYPE_CHECKING:
    from torch import Tensor


class KVTransfer(ABC):
    """Fills a payload with the source worker's, on every worker, in the same order everywhere.

    A group has one class of transfer, which `transfer_of` chooses, and each of its workers and shards has an instance.
    Another one is a subclass with `broadcast`, its name in `TRANSFERS`, and that name in `GroupSettings.transfer`.
    It has `join` and `leave` if it keeps connections, and `exports` and `set_exported` if Ray carries K/V with the
    calls of a step.
    """

    needs_calls: ClassVar[bool] = False
    """Whether the steps have to be calls of the workers' actors, with what `exports` returns as arguments."""

    @staticmethod
    def exports(
        workers: Sequence[WorkerHandle], plan: StepPlan
    ) -> list[tuple[WorkerHandle, tuple[Any, ...]]]:
        """In the master, before a step: source and calls, one per shard, for each payload of `set_exported`."""
        return []

    def join(self, rendezvous: Rendezvous) -> None:  # noqa: B027 - only transfers with connections override it
        """Enter an epoch; leaves the one before. Raises TransferError if a peer does not enter."""

    def leave(self) -> None:  # noqa: B027 - only transfers with connections override it
        """Drop all connections."""

    def set_exported(self, payloads: Sequence[npt.NDArray[np.uint8]]) -> None:  # noqa: B027 - see `needs_calls`
        """Hand over the payloads of the coming step's commits, in order, each as raw bytes: uint8 [bytes]."""

    @abstractmethod
    def broadcast(self, source: int, payload: Tensor) -> None:
        """Fill `payload`, flat [values] in the cache's dtype, with that of rank `source`; on return it is filled.

        Raises TransferError if it does not arrive.
        """


class CollectiveTransfer(KVTransfer):
    """One contiguous broadcast per commit, through Ray's collective interface."""

    def __init__(self) -> None:
        from actors.collective_handle import CollectiveHandle

        self._collective = CollectiveHandle()

    def join(self, rendezvous: Rendezvous) -> None:
        """See `KVTransfer.join`."""
        self._collective.join(rendezvous)

    def leave(self) -> None:
        """See `KVTransfer.leave`."""
        self._collective.leave()

    def broadcast(self, source: int, payload: Tensor) -> None:
        """See `KVTransfer.broadcast`."""
        self._collective.broadcast(payload, source, f"K/V of worker {source} did not arrive")


class ObjectStoreTransfer(KVTransfer):
    """K/V through Ray's object store, for workers that share an accelerator and so cannot form a collective.

    Ray fetches what the source's `export_payload` returned before it runs a step, so nothing waits for it there.
    """

    needs_calls = True

    def __init__(self) -> None:
        self._rank = 0
        self._exported: list[npt.NDArray[np.uint8]] = []

    @staticmethod
    def exports(
        workers: Sequence[WorkerHandle], plan: StepPlan
    ) -> list[tuple[WorkerHandle, tuple[Any, ...]]]:
        """See `KVTransfer.exports`."""
        sources = [(request.source_rank, request) for request in plan.requests]
        return [
            (workers[rank], workers[rank].call("export_payload", request))
            for rank, request in sources
            if rank is not None
        ]

    def join(self, rendezvous: Rendezvous) -> None:
        """Take note of the rank."""
        self._rank = rendezvous.rank

    def set_exported(self, payloads: Sequence[npt.NDArray[np.uint8]]) -> None:
        """See `KVTransfer.set_exported`."""
        self._exported = list(payloads)

    def broadcast(self, source: int, payload: Tensor) -> None:
        """See `KVTransfer.broadcast`. The next payload is copied in; the source has it already."""
        import torch

        raw = self._exported.pop(0)
        if source != self._rank:
            payload.view(torch.uint8).copy_(torch.from_numpy(raw.copy()))


TRANSFERS: dict[str, type[KVTransfer]] = {
    "collective": CollectiveTransfer,
    "object_store": ObjectStoreTransfer,
}
"""By the value of `GroupSettings.transfer`."""


def transfer_of(config: ExecutionConfig) -> type[KVTransfer]:
    """The transfer of a group. auto: the collective, or the object store where workers share an accelerator."""
    name = config.group.transfer
    if name == "auto":
        shared = config.model.device != "cpu" and config.group.num_accelerators < 1
        name = "object_store" if shared else "collective"
    return TRANSFERS[name]
