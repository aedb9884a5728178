"""How a winner's K/V reaches the other workers of a group.

`CollectiveTransfer` is one contiguous broadcast through `ray.util.collective`;
`ObjectStoreTransfer` serves where a collective cannot: several workers on one accelerator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from ray.util import collective
from torch import Tensor

from actors.collective_handle import CollectiveHandle
from actors.rendezvous import Rendezvous
from lopa_ray.execution.kv_cache import payload_to_bytes


class KVTransfer(ABC):
    """Fills a payload with the source worker's, on every worker, in the same order everywhere."""

    def join(self, rendezvous: Rendezvous) -> None:  # noqa: B027 - the object store needs no collective group
        """Enter an epoch; leaves the one before."""

    def leave(self) -> None:  # noqa: B027 - nor has it connections
        """Drop all connections."""

    def export(self, payload: Tensor) -> npt.NDArray[np.uint8]:
        """A payload, flat [values] in the cache's dtype, as raw bytes uint8 [bytes]; for `set_exported` elsewhere."""
        return payload_to_bytes(payload)

    def set_exported(self, payloads: Sequence[npt.NDArray[np.uint8]]) -> None:  # noqa: B027 - a collective has none
        """Hand over the payloads of the coming step's commits, in order, each as raw bytes: uint8 [bytes]."""

    @abstractmethod
    def broadcast(self, source: int, payload: Tensor) -> None:
        """Fill `payload`, flat [values] in the cache's dtype, with that of rank `source`; on return it is filled.

        Raises TransferError if it does not arrive.
        """


class CollectiveTransfer(KVTransfer):
    """One broadcast per commit."""

    def __init__(self) -> None:
        self._collective = CollectiveHandle()

    def join(self, rendezvous: Rendezvous) -> None:
        """Build the epoch's group. Raises TransferError if a peer does not."""
        self._collective.join(rendezvous)

    def leave(self) -> None:
        """Drop the group, if there is one."""
        self._collective.leave()

    def broadcast(self, source: int, payload: Tensor) -> None:
        """See `KVTransfer.broadcast`."""
        failed = f"K/V of worker {source} did not arrive"
        with self._collective.group(failed) as group:
            collective.broadcast(payload, source, group)
        self._collective.wait(failed)


class ObjectStoreTransfer(KVTransfer):
    """Payloads come with the step call: Ray fetched what the source's `export_payload` returned."""

    def __init__(self) -> None:
        self._rank = 0
        self._exported: list[npt.NDArray[np.uint8]] = []

    def join(self, rendezvous: Rendezvous) -> None:
        """Take note of the rank."""
        self._rank = rendezvous.rank

    def set_exported(self, payloads: Sequence[npt.NDArray[np.uint8]]) -> None:
        """See `KVTransfer.set_exported`. `payloads`: each uint8 [bytes]."""
        self._exported = list(payloads)

    def broadcast(self, source: int, payload: Tensor) -> None:
        """See `KVTransfer.broadcast`. The next payload is copied in; the source has it already."""
        raw = self._exported.pop(0)
        if source != self._rank:
            payload.view(torch.uint8).copy_(torch.from_numpy(raw.copy()))
