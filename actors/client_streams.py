"""ClientStreams: which client has which request, and the streams that their events go to."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import LopaError, ProtocolError, WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.protocol.step_report import StepTiming
from lopa_ray.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class StepEvents:
    """A step's events of a client's requests, which have the client's numbers. `timing` is None between steps."""

    events: tuple[RequestEvent, ...]
    timing: StepTiming | None
    states: Mapping[int, bytes] = field(default_factory=dict)
    """The session's state of each request that goes on (see `RequestSession.export_state`), for a client's journal."""


class ClientStreams:
    """Submits requests to a scheduler, and routes their events."""

    def __init__(self, scheduler: Scheduler, on_submit: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._on_submit = on_submit
        self._queues: dict[str, asyncio.Queue[StepEvents]] = {}
        """Of the open streams, by client."""
        self._owners: dict[int, tuple[str, int]] = {}
        """Scheduler's id of each unfinished request → its client, and the client's number for it."""
        self.broken: LopaError | None = None
        """Why no request is taken any more."""

    async def stream(self, client: str) -> AsyncGenerator[StepEvents, None]:
        """See `Master.stream`. Raises ProtocolError if the client has an open stream."""
        if client in self._queues:
            raise ProtocolError(f"client {client!r} has an open stream; give each client its own name")
        queue = self._queues[client] = asyncio.Queue()
        try:
            yield StepEvents((), None)
            while True:
                yield await queue.get()
        finally:
            del self._queues[client]
            self.cancel(client, [number for owner, number in self._owners.values() if owner == client])

    def submit(self, client: str, sessions: Mapping[int, RequestSession], losses: Mapping[int, int]) -> None:
        """See `Master.submit`. Raises ProtocolError if the client has no open stream."""
        queue = self._queues.get(client)
        if queue is None:
            raise ProtocolError(f"client {client!r} has no open stream; open one first")
        if self.broken is not None:
            failures = tuple(
                RequestFailure(number, WorkerLostError(str(self.broken), losses.get(number, 0)))
                for number in sessions
            )
            queue.put_nowait(StepEvents(failures, None))
            return
        for number, session in sessions.items():
            request_id = self._scheduler.submit(session)
            self._owners[request_id] = client, number
            if number in losses:
                self._scheduler.poison.add_losses(request_id, losses[number])
        self._on_submit()

    def cancel(self, client: str, numbers: Collection[int]) -> None:
        """See `Master.cancel`."""
        for request_id, (owner, number) in [*self._owners.items()]:
            if owner == client and number in numbers:
                del self._owners[request_id]
                self._scheduler.cancel(request_id)

    def publish(self, events: list[RequestEvent], timing: StepTiming | None) -> None:
        """Send each client its events, in one message."""
        events_of: defaultdict[str, list[RequestEvent]] = defaultdict(list)
        states_of: defaultdict[str, dict[int, bytes]] = defaultdict(dict)
        for event in events:
            request_id = event.request_key
            if request_id not in self._owners:
                continue  # its client has closed the stream
            client, number = self._owners[request_id]
            events_of[client].append(replace(event, request_key=number))
            if isinstance(event, RequestFailure) or event.outcome.finish_reason is not None:
                del self._owners[request_id]
            elif (state := self._scheduler.session_state(request_id)) is not None:
                states_of[client][number] = state
        for client, own in events_of.items():
            self._queues[client].put_nowait(StepEvents(tuple(own), timing, states_of[client]))
