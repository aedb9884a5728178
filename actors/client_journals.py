"""Journals: what a client keeps of its requests, to go on with them on another group when theirs is lost."""

from __future__ import annotations

from collections.abc import Iterator

from actors.client_streams import StepEvents
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import LopaError, WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.scheduling.journal import Journal

RETRY_PAUSE_S = 1.0
"""Between two attempts to replace a lost group. Ray goes on placing actors on a node that is gone until it has
missed several health checks, 10 to 20 seconds by default; such an attempt fails, and the next may not."""


def not_replaced(loss: WorkerLostError, why: Exception, within: float) -> WorkerLostError:
    """What ends the requests of a lost group when no other could be started."""
    if isinstance(why, TimeoutError):
        reason = f"it did not start within {within:g} s"
    else:
        reason = str(why) if isinstance(why, LopaError) else f"{type(why).__name__}: {why}"
    return WorkerLostError(f"{loss}; no other group could take over: {reason} (see group.resume_timeout_s)")


class ClientJournals:
    """One client's unfinished requests, by its own numbers."""

    def __init__(self) -> None:
        self._journals: dict[int, Journal] = {}
        self._moved = True
        """A request has made a step since `resumed`, or nothing was resumed yet."""

    def __len__(self) -> int:
        return len(self._journals)

    def __iter__(self) -> Iterator[int]:
        return iter([*self._journals])

    def begin(self, number: int, session: DecodeSession) -> None:
        """Before the request is submitted."""
        self._journals[number] = Journal(session)

    def end(self, number: int) -> None:
        """Nobody listens to the request any more."""
        self._journals.pop(number, None)

    def take(self, batch: StepEvents) -> Iterator[RequestEvent]:
        """Write down a batch; yields what is to be handed on.

        Raises WorkerLostError, after the other events, if the group ended: no request of it has.
        """
        lost: WorkerLostError | None = None
        for event in batch.events:
            number = event.request_id
            if number not in self._journals:
                continue  # nobody listens any more
            if isinstance(event, RequestFailure):
                if isinstance(event.error, WorkerLostError):
                    lost = event.error
                    continue
                self.end(number)
            else:
                self._moved = True
                if event.outcome.finish_reason is not None:
                    self.end(number)
                elif number in batch.states:
                    self._journals[number].record(event.plan, event.outcome, batch.states[number])
            yield event
        if lost is not None:
            raise lost

    def resumed(self) -> dict[int, DecodeSession]:
        """All of them as they stand, for another group."""
        self._moved = not self._journals
        return {number: journal.restored_session() for number, journal in self._journals.items()}

    @property
    def stuck(self) -> bool:
        """None has made a step since `resumed`, so it may be one of them that no group survives."""
        return bool(self._journals) and not self._moved
