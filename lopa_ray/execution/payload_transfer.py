"""PayloadTransfer: what a runner needs so that commits can come from other workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor


class PayloadTransfer(Protocol):
    """A worker's connection to the other workers of its group."""

    @property
    def rank(self) -> int:
        """The number of this worker, from 0 on."""
        ...

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        """Fill the payload of each source rank, flat [values] in the cache's dtype, with what that worker has in it.

        All workers call it with the same ranks in the same order. On return all payloads are filled, on the device.
        Raises TransferError if one does not arrive; then none may be used.
        """
        ...
