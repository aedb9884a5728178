"""ClientStreams: which client has which request, and the streams that their events go to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace

from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import LopaError, ProtocolError, WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.protocol.step_report import StepTiming
from lopa_ray.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class StepEvents:
    """What one step meant for a client's requests, which have the client's numbers. `timing` is None between steps."""

    events: tuple[RequestEvent, ...]
    timing: StepTiming | None
    states: Mapping[int, bytes] = field(default_factory=dict)
    """The session's state of each request that goes on (see `RequestSession.export_state`), for a client's journal."""


@dataclass(slots=True)
class _Client:
    """An open stream, and the requests whose events go there."""

    queue: asyncio.Queue[StepEvents] = field(default_factory=asyncio.Queue)
    requests: dict[int, int] = field(default_factory=dict)
    """The client's number for each unfinished request → the scheduler's id."""


@dataclass(slots=True)
class _Batch:
    """The part of a step's results that one client receives."""

    client: _Client
    events: list[RequestEvent] = field(default_factory=list)
    states: dict[int, bytes] = field(default_factory=dict)


class ClientStreams:
    """Submits requests to a scheduler, and routes their events."""

    def __init__(self, scheduler: Scheduler, on_submit: Callable[[], None]) -> None:
        """`on_submit` is called when requests were submitted."""
        self._scheduler = scheduler
        self._on_submit = on_submit
        self._clients: dict[str, _Client] = {}
        self._owners: dict[int, tuple[_Client, int]] = {}
        """Scheduler's id of each unfinished request → its client, and the client's number for it."""
        self.broken: LopaError | None = None
        """Why no request is taken any more."""

    async def stream(self, client: str) -> AsyncGenerator[StepEvents, None]:
        """See `Master.stream`. Raises ProtocolError if the client has an open stream."""
        if client in self._clients:
            raise ProtocolError(f"client {client!r} has an open stream; give each client its own name")
        opened = self._clients[client] = _Client()
        try:
            yield StepEvents((), None)
            while True:
                yield await opened.queue.get()
        finally:
            del self._clients[client]
            for request_id in opened.requests.values():
                del self._owners[request_id]
                self._scheduler.cancel(request_id)

    def submit(self, client: str, sessions: Mapping[int, RequestSession], losses: Mapping[int, int]) -> None:
        """See `Master.submit`. Raises ProtocolError if the client has no open stream."""
        opened = self._clients.get(client)
        if opened is None:
            raise ProtocolError(f"client {client!r} has no open stream; open one first")
        if self.broken is not None:
            failures = tuple(
                RequestFailure(number, WorkerLostError(str(self.broken), losses.get(number, 0)))
                for number in sessions
            )
            opened.queue.put_nowait(StepEvents(failures, None))
            return
        for number, session in sessions.items():
            request_id = self._scheduler.submit(session)
            opened.requests[number] = request_id
            self._owners[request_id] = opened, number
            if number in losses:
                self._scheduler.suspects.add_losses(request_id, losses[number])
        self._on_submit()

    def cancel(self, client: str, numbers: list[int]) -> None:
        opened = self._clients.get(client)
        for number in numbers:
            request_id = opened.requests.pop(number, None) if opened is not None else None
            if request_id is not None:
                del self._owners[request_id]
                self._scheduler.cancel(request_id)

    def publish(self, events: list[RequestEvent], timing: StepTiming | None) -> None:
        """Send each client its events, in one message."""
        batches: dict[int, _Batch] = {}
        for event in events:
            owner = self._owners.get(event.request_key)
            if owner is None:
                continue  # its client has closed the stream
            client, number = owner
            batch = batches.setdefault(id(client), _Batch(client))
            batch.events.append(replace(event, request_key=number))
            if isinstance(event, RequestFailure) or event.outcome.finish_reason is not None:
                del self._owners[event.request_key], client.requests[number]
            elif (state := self._scheduler.session_state(event.request_key)) is not None:
                batch.states[number] = state
        for batch in batches.values():
            batch.client.queue.put_nowait(StepEvents(tuple(batch.events), timing, batch.states))
