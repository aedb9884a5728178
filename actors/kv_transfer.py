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
from ray.util.collective.types import Backend
from torch import Tensor

from actors.elastic_group import BACKEND, Membership, register
from lopa_ray.errors import TransferError


class KVTransfer(ABC):
    """Fills a payload with the source worker's, on every worker, in the same order everywhere."""

    def join(self, membership: Membership) -> None:  # noqa: B027 - the object store needs no membership
        """Enter an epoch; leaves the one before."""

    def leave(self) -> None:  # noqa: B027 - nor has it connections
        """Drop all connections."""

    @abstractmethod
    def exchange(self, source: int, payload: Tensor) -> None:
        """Fill `payload` in place with that of rank `source`."""


class CollectiveTransfer(KVTransfer):
    """One broadcast per commit."""

    def __init__(self) -> None:
        register()
        self._membership: Membership | None = None

    def join(self, membership: Membership) -> None:
        """Build the epoch's group; all its workers must do so at about the same time.

        Raises TransferError if a peer does not.
        """
        self.leave()
        if membership.world_size > 1:
            try:
                collective.init_collective_group(
                    membership.world_size, membership.rank, Backend(BACKEND), membership.group_name
                )
            except RuntimeError as error:
                raise TransferError(f"epoch {membership.epoch} was not formed: {error}") from None
            self._membership = membership

    def leave(self) -> None:
        """Drop the group, if there is one."""
        if self._membership is not None:
            collective.destroy_collective_group(self._membership.group_name)
            self._membership = None

    def exchange(self, source: int, payload: Tensor) -> None:
        """Broadcast. On failure the group is dropped, so that the survivors fail at once as well.

        Raises TransferError.
        """
        if self._membership is None:
            raise TransferError("this worker has left its group, and no new one has been joined")
        try:
            collective.broadcast(payload, source, self._membership.group_name)
        except RuntimeError as error:
            self.leave()
            raise TransferError(f"K/V of worker {source} did not arrive: {error}") from None


class ObjectStoreTransfer(KVTransfer):
    """Payloads come with the step call: Ray fetched them from the source's `export` beforehand."""

    def __init__(self) -> None:
        self._rank = 0
        self._payloads: list[npt.NDArray[np.uint8]] = []

    def join(self, membership: Membership) -> None:
        """Take note of the rank."""
        self._rank = membership.rank

    def receive(self, payloads: Sequence[npt.NDArray[np.uint8]]) -> None:
        """The payloads of the coming step's commits, in order."""
        self._payloads = list(payloads)

    def exchange(self, source: int, payload: Tensor) -> None:
        """Copy the next payload in; the source has it already."""
        raw = self._payloads.pop(0)
        if source != self._rank:
            payload.view(torch.uint8).copy_(torch.from_numpy(raw.copy()))
