"""StepTransport: how the plans of a step travel to the workers, and their reports back.

An actor call costs 1 to 3 ms per round, and more with every worker. So a worker opens a TCP connection to its master
when it joins its first epoch; its `StepThread` executes the plans that arrive. Everything else is an actor call, and
Ray still decides which actors are alive: the master asks it when a connection ends and when a step takes long.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import secrets
from collections.abc import Sequence
from typing import Any

import ray.util

from actors.calls.rpc import RPCBatch
from actors.calls.worker_handle import WorkerHandle
from actors.steps.step_connection import StepConnection
from actors.steps.step_thread import READY, StepAddress
from lopa_ray.protocol.plan import StepPlan

TOKEN_BYTES = 32

MAX_BUFFERED_BYTES = 2**24  # of reports; reading pauses while that many wait, so a step's should fit


class StepTransport:
    """A connection to each worker and shard, for which the master listens. Where Ray encrypts its messages, steps are
    actor calls instead."""

    def __init__(self) -> None:
        self._encrypted = os.environ.get("RAY_USE_TLS", "0") == "1"
        self._server: asyncio.Server | None = None
        self._tokens: dict[Any, bytes] = {}
        self._connections: dict[Any, StepConnection] = {}

    def scatter(self, workers: Sequence[WorkerHandle], plans: Sequence[StepPlan]) -> RPCBatch:
        """Send each worker its plan, by rank."""
        if self._encrypted:
            return RPCBatch({w: w.call("execute", plan) for w, plan in zip(workers, plans, strict=True)})
        replies = {}
        for worker, plan in zip(workers, plans, strict=True):
            message = pickle.dumps(plan, pickle.HIGHEST_PROTOCOL)
            replies[worker] = tuple(self._connections[shard].execute(message) for shard in worker.shards)
        return RPCBatch(replies)

    async def address(self, actor: Any) -> StepAddress | None:
        """The address to which a worker's or shard's actor connects first; None: plans are actor calls."""
        if self._encrypted:
            return None
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
