"""ClientJournals: a client's record of its requests. If their group is lost, they continue from it on another group."""

from __future__ import annotations

from collections.abc import Iterator

from actors.client_streams import StepEvents
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.scheduling.fair_queue import first_in_line
from lopa_ray.scheduling.journal import Journal
from lopa_ray.scheduling.suspects import Suspects


class ClientJournals:
    """One client's unfinished requests, by its own numbers."""

    def __init__(self) -> None:
        self._journals: dict[int, Journal] = {}
        self._suspects = Suspects()
        """As the group has them, for the case that its master is lost."""

    def __iter__(self) -> Iterator[int]:
        return iter([*self._journals])

    def begin(self, number: int, session: RequestSession) -> None:
        """Before the request is submitted."""
        self._journals[number] = Journal(session)

    def end(self, number: int) -> None:
        """The request has ended, or its caller has stopped iterating."""
        self._journals.pop(number, None)
        self._suspects.clear([number])

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
                    self._suspects.add_losses(number, event.error.losses)
                    continue
                self.end(number)
            else:
                self._suspects.clear([number])
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

    def resumed_sessions(self) -> dict[int, RequestSession]:
        """The sessions of all requests in their present state, for another group."""
        return {number: journal.restored_session() for number, journal in self._journals.items()}

    @property
    def losses(self) -> dict[int, int]:
        """Request → how often workers were lost during the step that it is in, if they were; see `Master.submit`."""
        return self._suspects.all_losses()

    def record_silent_loss(self, max_num_seqs: int) -> int | None:
        """The group was lost with its master, which cannot say why. Returns the request that has caused it, if that is
        to be assumed; see `Suspects`. Requests that were not `first_in_line` had no slot there."""
        sessions = {number: journal.session for number, journal in self._journals.items()}
        in_flight = first_in_line(sessions, max_num_seqs)
        suspect = self._suspects.next_of(in_flight)
        return self._suspects.record_loss(in_flight if suspect is None else [suspect], with_group=True)
