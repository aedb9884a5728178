"""ClientJournals: a client's record of its requests. If their group is lost, they continue from it on another group."""

from __future__ import annotations

from collections.abc import Iterator

from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure, StepEvents
from lopa_ray.scheduling.fair_queue import first_in_line
from lopa_ray.scheduling.journal import Journal
from lopa_ray.scheduling.poison_requests import PoisonRequests


class ClientJournals:
    """One client's unfinished requests, by its own numbers."""

    def __init__(self) -> None:
        self._journals: dict[int, Journal] = {}
        self._poison = PoisonRequests()  # the client's copy of the loss counts: the master's own dies with it

    def __iter__(self) -> Iterator[int]:
        return iter([*self._journals])

    def begin(self, number: int, session: RequestSession) -> None:
        self._journals[number] = Journal(session)

    def end(self, number: int) -> None:
        """The request has ended, or its caller has stopped iterating."""
        self._journals.pop(number, None)
        self._poison.clear([number])

    def record(self, batch: StepEvents) -> Iterator[RequestEvent]:
        """Record a batch; yields the events for the requests' callers. Requests that end because the group does are not
        among them: they go on in another group (see `group_loss`)."""
        for event in batch.events:
            number = event.request_key
            if number not in self._journals:
                continue  # its caller has stopped iterating
            if isinstance(event, RequestFailure):
                if isinstance(event.error, WorkerLostError):
                    self._poison.add_losses(number, event.error.losses)
                    continue
                self.end(number)
            else:
                self._poison.clear([number])
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
        return {number: journal.restored_session() for number, journal in self._journals.items()}

    @property
    def losses(self) -> dict[int, int]:
        """Request → how often workers were lost during the step that it is in, if they were; see `Master.submit`."""
        return self._poison.losses

    def record_silent_loss(self, max_num_seqs: int) -> int | None:
        """The group was lost with its master, which cannot say why. Returns the request that has probably caused it;
        see `PoisonRequests`. Requests that were not `first_in_line` had no slot there."""
        sessions = {number: journal.session for number, journal in self._journals.items()}
        in_flight = first_in_line(sessions, max_num_seqs)
        alone = self._poison.next_of(in_flight)
        return self._poison.record_loss(in_flight if alone is None else [alone], with_group=True)
