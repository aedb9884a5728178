"""ClientJournals: a client's record of its requests. If their group is lost, they continue from it on another group."""

from __future__ import annotations

from collections.abc import Iterator

from actors.client_streams import StepEvents
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.scheduling.journal import Journal


class ClientJournals:
    """One client's unfinished requests, by its own numbers."""

    def __init__(self) -> None:
        self._journals: dict[int, Journal] = {}
        self._progressed = True
        """A request has made a step since `resumed_sessions`, or none was resumed."""

    def __iter__(self) -> Iterator[int]:
        return iter([*self._journals])

    def begin(self, number: int, session: DecodeSession) -> None:
        """Before the request is submitted."""
        self._progressed = self._progressed or not self._journals
        self._journals[number] = Journal(session)

    def end(self, number: int) -> None:
        """The request has ended, or its caller has stopped iterating."""
        self._journals.pop(number, None)

    def record(self, batch: StepEvents) -> Iterator[RequestEvent]:
        """Record a batch; yields the events that go on to the requests' callers.

        Raises WorkerLostError, after the other events, if the group ended: no request of it has.
        """
        lost: WorkerLostError | None = None
        for event in batch.events:
            number = event.request_key
            if number not in self._journals:
                continue  # its caller has stopped iterating
            if isinstance(event, RequestFailure):
                if isinstance(event.error, WorkerLostError):
                    lost = event.error
                    continue
                self.end(number)
            else:
                self._progressed = True
                if event.outcome.finish_reason is not None:
                    self.end(number)
                elif number in batch.states:
                    self._journals[number].record(event.plan, event.outcome, batch.states[number])
            yield event
        if lost is not None:
            raise lost

    def resumed_sessions(self) -> dict[int, DecodeSession]:
        """The sessions of all requests in their present state, for another group."""
        self._progressed = not self._journals
        return {number: journal.restored_session() for number, journal in self._journals.items()}

    @property
    def no_progress(self) -> bool:
        """None has made a step since `resumed_sessions`, so it may be one of them that no group survives."""
        return bool(self._journals) and not self._progressed
