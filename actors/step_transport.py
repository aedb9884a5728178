"""StepTransport: how the plans of a step travel to the workers, and their reports back.

An actor call costs 1 to 3 ms per round, and more with every worker. So a worker opens a TCP connection to its master
(`ConnectionTransport`) when it joins its first epoch; its `StepThread` executes the plans that arrive. Everything else
is an actor call, and Ray still decides which actors are alive: the master asks it when a connection ends and when a
step takes long. Steps are actor calls if Ray encrypts its messages (`RAY_USE_TLS=1`).
"""

from __future__ import annotations

import asyncio
import os
import pickle
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import ray.util

from actors.rpc import RPCBatch
from actors.step_connection import StepConnection
from actors.step_thread import READY, StepAddress
from actors.worker_handle import WorkerHandle
from lopa_ray.protocol.plan import StepPlan

TOKEN_BYTES = 32

MAX_BUFFERED_BYTES = 2**24
"""Of reports that have arrived: reading pauses where more wait, so all of a step should fit."""


class StepTransport(ABC):
    """Sends each worker its plan."""

    @abstractmethod
    def scatter(self, workers: Sequence[WorkerHandle], plans: Sequence[StepPlan]) -> RPCBatch:
        """One plan per worker, by rank."""

    async def address(self, actor: Any) -> StepAddress | None:
        """Where the actor of a worker or shard has to connect before its first step; None: nowhere."""
        return None

    def forget(self, worker: WorkerHandle) -> None:  # noqa: B027 - only transports with connections override it
        """The worker leaves."""

    def close(self) -> None:  # noqa: B027 - only transports with a server override it
        """Take no further connections."""


class ConnectionTransport(StepTransport):
    """Over a connection to each worker and shard, for which the master listens."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tokens: dict[Any, bytes] = {}
        self._connections: dict[Any, StepConnection] = {}

    def scatter(self, workers: Sequence[WorkerHandle], plans: Sequence[StepPlan]) -> RPCBatch:
        replies = {}
        for worker, plan in zip(workers, plans, strict=True):
            message = pickle.dumps(plan, pickle.HIGHEST_PROTOCOL)
            replies[worker] = tuple(self._connections[shard].execute(message) for shard in worker.shards)
        return RPCBatch(replies)

    async def address(self, actor: Any) -> StepAddress:
        if self._server is None:
            host = ray.util.get_node_ip_address()
            self._server = await asyncio.start_server(self._serve, host, 0, limit=MAX_BUFFERED_BYTES)
        host, port, *_ = self._server.sockets[0].getsockname()
        return StepAddress(host, port, self._tokens.setdefault(actor, secrets.token_bytes(TOKEN_BYTES)))

    def forget(self, worker: WorkerHandle) -> None:
        for shard in worker.shards:
            self._tokens.pop(shard, None)
            if (connection := self._connections.pop(shard, None)) is not None:
                connection.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection of a worker. Nothing is unpickled before the token was shown."""
        try:
            token = await reader.readexactly(TOKEN_BYTES)
        except (OSError, asyncio.IncompleteReadError):
            return
        for actor, given in self._tokens.items():
            if secrets.compare_digest(given, token):
                connection = self._connections[actor] = StepConnection(actor, writer)
                writer.write(READY)
                await connection.receive(reader)
                return
        writer.transport.abort()


class CallTransport(StepTransport):
    """As calls of the workers' actors, where Ray encrypts its messages."""

    def scatter(self, workers: Sequence[WorkerHandle], plans: Sequence[StepPlan]) -> RPCBatch:
        return RPCBatch(
            {worker: worker.call("execute", plan) for worker, plan in zip(workers, plans, strict=True)}
        )


def make_step_transport() -> StepTransport:
    encrypted = os.environ.get("RAY_USE_TLS", "0") == "1"
    return CallTransport() if encrypted else ConnectionTransport()
