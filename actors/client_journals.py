"""ClientJournals: a client's record of its requests. If their group is lost, they continue from it on another group."""

from __future__ import annotations

from collections.abc import Iterator

from actors.client_streams import StepEvents
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.scheduling.fair_queue import first_in_line
from lopa_ray.scheduling.journal import Journal

MAX_SILENT_LOSSES = 2
"""On how many masters in a row a request may be lost before it has made a step."""


class ClientJournals:
    """One client's unfinished requests, by its own numbers."""

    def __init__(self) -> None:
        self._journals: dict[int, Journal] = {}
        self.losses: dict[int, int] = {}
        """Request → `WorkerLostError.losses` of the group that it had before this one."""
        self._silent_losses: dict[int, int] = {}
        """Request → on how many groups in a row it has made no step until their master was lost."""

    def __iter__(self) -> Iterator[int]:
        return iter([*self._journals])

    def begin(self, number: int, session: DecodeSession) -> None:
        """Before the request is submitted."""
        self._journals[number] = Journal(session)

    def end(self, number: int) -> None:
        """The request has ended, or its caller has stopped iterating."""
        self._journals.pop(number, None)
        self._clear_losses(number)

    def record(self, batch: StepEvents) -> Iterator[RequestEvent]:
        """Record a batch; yields the events that go on to the requests' callers. Those are not that the group has
        ended (see `group_loss`), since no request of it has.
        """
        for event in batch.events:
            number = event.request_key
            if number not in self._journals:
                continue  # its caller has stopped iterating
            if isinstance(event, RequestFailure):
                if isinstance(event.error, WorkerLostError):
                    self.losses[number] = event.error.losses
                    self._silent_losses.pop(number, None)
                    continue
                self.end(number)
            else:
                self._clear_losses(number)
                if event.outcome.finish_reason is not None:
                    self.end(number)
                elif number in batch.states:
                    self._journals[number].record(event.plan, event.outcome, batch.states[number])
            yield event

    @staticmethod
    def group_loss(batch: StepEvents) -> WorkerLostError | None:
        """Why the group has ended, if the batch says so."""
        failures = (event.error for event in batch.events if isinstance(event, RequestFailure))
        return next((error for error in failures if isinstance(error, WorkerLostError)), None)

    def resumed_sessions(self) -> dict[int, DecodeSession]:
        """The sessions of all requests in their present state, for another group."""
        return {number: journal.restored_session() for number, journal in self._journals.items()}

    def record_silent_loss(self, max_num_seqs: int) -> list[int]:
        """The group was lost with its master, which cannot say why. Returns the requests that end with it, since no
        group survives until they have made a step. Those that are not `first_in_line` had no slot there."""
        sessions = {number: journal.session for number, journal in self._journals.items()}
        for number in first_in_line(sessions, max_num_seqs):
            self._silent_losses[number] = self._silent_losses.get(number, 0) + 1
        return [number for number, count in self._silent_losses.items() if count > MAX_SILENT_LOSSES]

    def _clear_losses(self, number: int) -> None:
        """The request has made a step, or has ended."""
        self.losses.pop(number, None)
        self._silent_losses.pop(number, None)
