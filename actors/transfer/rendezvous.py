"""Rendezvous and RendezvousStore: how the actors of a collective group find each other."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Any

import ray.util


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The data with which an actor joins the others of a collective group, for one epoch."""

    epoch: int
    rank: int
    world_size: int
    store: tuple[str, int] | None  # of the master's key-value store; None for one actor, which needs none
    collective: str
    timeout_s: float  # a peer hangs then; well below the master's deadline, or workers that wait seem lost
    purpose: str = "kv"  # which group of that epoch: kv, or the shards of one worker

    @property
    def group_name(self) -> str:
        """Carries the rendezvous: Ray gives a backend nothing else but rank and size."""
        assert self.store is not None
        host, port = self.store
        return f"lopa/{self.collective}/{host}/{port}/{self.epoch}/{self.timeout_s}/{self.purpose}"


class RendezvousStore:
    """torch's TCPStore, which this process serves as long as this object is kept. Nothing else in a master needs torch,
    whose import takes longer than all else. So a thread opens the store while the workers start their processes."""

    def __init__(self, collective: str = "gloo") -> None:
        self._collective = collective
        self._opened: asyncio.Future[tuple[Any, str]] | None = None

    def open(self) -> asyncio.Future[tuple[Any, str]]:
        if self._opened is None:
            self._opened = asyncio.ensure_future(asyncio.to_thread(open_store))
        return self._opened

    async def address(self) -> tuple[str, int]:
        """The store's host and port, once it is open. Raises RuntimeError if it cannot be opened."""
        store, host = await self.open()
        return host, store.port

    async def rendezvous(
        self, purpose: str, rank: int, size: int, epoch: int, timeout_s: float
    ) -> Rendezvous:
        """The invitation of an actor to one of the groups of an epoch. Raises as `address`."""
        store = await self.address() if size > 1 else None
        return Rendezvous(epoch, rank, size, store, self._collective, timeout_s, purpose)

    def abandon(self, epoch: int) -> None:
        """Release the workers that wait for peers of an epoch. Before the store is open there are none."""
        if self._opened is not None and self._opened.done():
            store, _ = self._opened.result()
            store.set(abandoned_key(epoch), b"1")


def abandoned_key(epoch: int | str) -> str:
    return f"abandoned{epoch}"


def open_store() -> tuple[Any, str]:
    """A store that this process serves as long as it is kept, and its host. Raises RuntimeError, and OSError."""
    from actors.transfer.process_group import JOIN_TIMEOUT, c10d

    # Creating a store resolves this host's name backwards, which stalls where DNS is slow.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    host = ray.util.get_node_ip_address()
    # Opened here, because the store itself would listen on all addresses.
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    store = c10d.TCPStore(
        host,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=JOIN_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    return store, host
