"""Ways for a winner's K/V to reach the other workers of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ray.util import collective
from torch import Tensor

from actors.transfer.collective_handle import CollectiveHandle
from actors.transfer.rendezvous import Rendezvous
from lopa_ray.config.group_settings import TransferName


class CollectiveTransfer(CollectiveHandle):
    """The `PayloadTransfer` of a worker or shard: one contiguous broadcast per source and step through Ray's collective
    interface, and one wait for all."""

    rank = 0

    def join(self, rendezvous: Rendezvous) -> None:
        self.rank = rendezvous.rank
        super().join(rendezvous)

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        for source, payload in payloads.items():
            with self.group(f"K/V of worker {source} did not arrive") as group:
                collective.broadcast(payload, source, group)
        self.synchronize("K/V of a worker did not arrive")


class HostTransfer(CollectiveTransfer):
    """Through the memory of the hosts, by Gloo: NCCL and HCCL refuse workers that share an accelerator."""

    def join(self, rendezvous: Rendezvous) -> None:
        super().join(replace(rendezvous, collective="gloo"))

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        on_host = {source: payload.cpu() for source, payload in payloads.items()}
        super().broadcast(on_host)
        for source, payload in payloads.items():
            if source != self.rank:
                payload.copy_(on_host[source])


TRANSFERS: dict[TransferName, type[CollectiveTransfer]] = {
    "collective": CollectiveTransfer,
    "object_store": HostTransfer,
}
"""Value of `GroupSettings.transfer` → the class that it selects."""
