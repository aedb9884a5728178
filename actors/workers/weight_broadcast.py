"""WeightBroadcast: a trainer's tensors on their way to a group, over a collective and without a file."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import ray
import torch
from ray.util import collective

from actors.calls.actor_errors import unwrapped_errors
from actors.transfer.collective_handle import CollectiveHandle
from actors.transfer.rendezvous import Rendezvous, open_store
from actors.workers.weight_chunks import to_chunks
from lopa_ray.errors import TransferError
from lopa_ray.model.weights import Weights, host_copies

TIMEOUT_S = 600.0  # for the other side to come, and for each tensor
CONNECT_S = 10.0  # for the trainer's node to take or refuse a connection


class WeightBroadcast:
    """Made by an actor of a trainer and returned by a method of it, for one `update_weights`. The trainer's own object
    sends the tensors, as they are then, and has to live until the update ends; what others get can receive them."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Tensors, [...] in any dtype on any device, by their names in the checkpoint's files."""
        self._layout = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        self._store, host = open_store()
        self._address: tuple[str, int] = host, self._store.port
        threading.Thread(
            target=lambda: deque(self._exchange(0, host_copies(tensors)), 0), daemon=True
        ).start()

    def __getstate__(self) -> dict[str, Any]:
        return {"_layout": self._layout, "_address": self._address}

    async def receive(self) -> dict[str, Any]:
        """Name → reference to the chunk that has the tensor, as of `put_tensors`: they are received in a task of their
        own. Raises TransferError if the trainer is lost."""
        received: dict[str, Any] = {}
        with unwrapped_errors():
            receiving: Any = ray.remote(num_cpus=0)(_receive).options(num_returns="streaming").remote(self)
            async for names in receiving:
                received |= dict.fromkeys(await names, await anext(receiving))
        return received

    def _exchange(self, rank: int, weights: Weights) -> Weights:
        if rank:
            self._require_sender()
        handle = CollectiveHandle()
        handle.join(Rendezvous(0, rank, 2, self._address, "gloo", TIMEOUT_S, "weights"))
        for name, tensor in weights:
            with handle.group("trainer and group lost touch") as group:
                collective.broadcast(tensor.contiguous().view(-1).view(torch.uint8), 0, group)
            yield name, tensor
        handle.leave()

    def _require_sender(self) -> None:
        """Raises TransferError where nothing listens any more; a store's client would wait for it for long."""
        try:
            socket.create_connection(self._address, CONNECT_S).close()
        except OSError as error:
            reason = f"the trainer cannot be reached, or no longer has the weights: {error}"
            raise TransferError(reason) from None


def _receive(broadcast: WeightBroadcast) -> Iterator[Any]:
    """The names of a chunk, then the chunk, and so on."""
    empty = ((name, torch.empty(shape, dtype=dtype)) for name, (dtype, shape) in broadcast._layout.items())
    for chunk in to_chunks(broadcast._exchange(1, empty)):
        yield [name for name, *_ in chunk]
        yield chunk
