"""KVTransfer: how a winner's K/V reaches the other workers of a group.

Masters have this module too, and start without torch, so the transfers import it where workers use them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from actors.rendezvous import Rendezvous
from actors.worker_handle import WorkerHandle
from lopa_ray.config.group_settings import TransferName
from lopa_ray.protocol.plan import StepPlan

if TYPE_CHECKING:
    from torch import Tensor


class KVTransfer(ABC):
    """A `PayloadTransfer` of a worker or shard. A new one is a subclass with `broadcast`, listed in `TRANSFERS`. It has
    `join` and `leave` if it keeps connections, and `exports` and `set_exported` if Ray carries K/V with the calls of a
    step."""

    name: ClassVar[TransferName]
    """The value of `GroupSettings.transfer` that selects it."""
    needs_calls: ClassVar[bool] = False
    """Whether the steps have to be calls of the workers' actors, with what `exports` returns as arguments."""

    def __init__(self) -> None:
        self.rank = 0

    @staticmethod
    def exports(workers: Sequence[WorkerHandle], plan: StepPlan) -> dict[WorkerHandle, tuple[Any, ...]]:
        """In the master, before a step: source → calls, one per shard, for each payload of `set_exported`."""
        return {}

    def join(self, rendezvous: Rendezvous) -> None:
        """Enter an epoch; leaves the one before. Raises TransferError if a peer does not enter."""
        self.rank = rendezvous.rank

    def leave(self) -> None:  # noqa: B027 - only transfers with connections override it
        """Drop all connections."""

    def set_exported(self, payloads: Sequence[npt.NDArray[np.uint8]]) -> None:  # noqa: B027 - see `needs_calls`
        """Hand over the payloads of the coming step, in order of the source, each as raw bytes: uint8 [bytes]."""

    @abstractmethod
    def broadcast(self, payloads: Mapping[int, Tensor]) -> None: ...


class CollectiveTransfer(KVTransfer):
    """One contiguous broadcast per source and step, through Ray's collective interface, and one wait for all."""

    name = "collective"

    def __init__(self) -> None:
        super().__init__()
        from actors.collective_handle import CollectiveHandle

        self._collective = CollectiveHandle()

    def join(self, rendezvous: Rendezvous) -> None:
        super().join(rendezvous)
        self._collective.join(rendezvous)

    def leave(self) -> None:
        self._collective.leave()

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        for source, payload in payloads.items():
            self._collective.broadcast(payload, source, f"K/V of worker {source} did not arrive")
        self._collective.synchronize("K/V of a worker did not arrive")


class ObjectStoreTransfer(KVTransfer):
    """K/V through Ray's object store, for workers that share an accelerator and so cannot form a collective. Ray
    fetches the payloads before it runs a step, so nothing waits for them there."""

    name = "object_store"
    needs_calls = True

    def __init__(self) -> None:
        super().__init__()
        self._exported: list[npt.NDArray[np.uint8]] = []

    @staticmethod
    def exports(workers: Sequence[WorkerHandle], plan: StepPlan) -> dict[WorkerHandle, tuple[Any, ...]]:
        return {
            workers[source]: workers[source].call("call_runner", "export_payload", requests)
            for source, requests in plan.commits_by_source.items()
        }

    def set_exported(self, payloads: Sequence[npt.NDArray[np.uint8]]) -> None:
        self._exported = list(payloads)

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        import torch

        exported, self._exported = self._exported, []  # kept, they would stay in the object store while idle
        for (source, payload), raw in zip(payloads.items(), exported, strict=True):
            if source != self.rank:  # a source has its own payload already
                payload.view(torch.uint8).copy_(torch.from_numpy(raw.copy()))


TRANSFERS: dict[TransferName, type[KVTransfer]] = {
    transfer.name: transfer for transfer in (CollectiveTransfer, ObjectStoreTransfer)
}
