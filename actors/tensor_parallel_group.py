"""RayTensorParallelGroup: the shards of one worker's model, an actor each."""

from __future__ import annotations

import torch
from ray.util import collective
from torch import Tensor

from actors.collective_handle import CollectiveHandle

LOST_TOUCH = "the shards of a worker lost touch"


class RayTensorParallelGroup(CollectiveHandle):
    """A `TensorParallelGroup` over Ray collectives. All methods but `leave` raise TransferError."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank = rank
        self.size = size

    def all_reduce(self, x: Tensor) -> Tensor:
        """See `TensorParallelGroup.all_reduce`."""
        if self.size > 1:
            x = x.contiguous()
            with self.group(LOST_TOUCH) as group:
                collective.allreduce(x, group)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """See `TensorParallelGroup.all_gather`."""
        if self.size == 1:
            return x[None]
        gathered = x.new_empty(self.size, *x.shape)
        with self.group(LOST_TOUCH) as group:
            collective.allgather(list(gathered.unbind()), x.contiguous(), group)
        return gathered

    def wait(self) -> None:
        """See `TensorParallelGroup`."""
        if self.size > 1:
            self.synchronize(LOST_TOUCH)

    def barrier(self, device: torch.device) -> None:
        """Wait until all shards have called this."""
        self.all_gather(torch.zeros(1, device=device))
        self.wait()
