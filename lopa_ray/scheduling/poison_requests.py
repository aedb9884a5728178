"""Poison requests: requests that make the steps fail that they take part in.

When a step of several requests fails, one of them may be the cause. So each one makes its next step alone, and a
request whose lone steps fail as well is ended. A scheduler applies these rules to its requests. A client applies them
to the requests of a group whose master was lost: only its client knows which requests that group had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

MAX_LOSSES = 2
"""Losses of workers in the same step after which a request is run alone. The loss of its group counts for as many."""

MAX_LONE_LOSSES = 2
"""Further losses after which it is ended. A single loss is chance too often: after the loss of a group each request
runs alone, and Ray does not tell a killed process from a crashed process."""


class PoisonRequests:
    """Requests that are run alone, and poison requests, which cause failures. After an error of a worker all requests
    of the step are run alone. The loss of a worker may have nothing to do with them, so only requests are run alone
    that have lost workers `MAX_LOSSES` times in their present step."""

    def __init__(self) -> None:
        self._alone: set[int] = set()
        self.losses: Counter[int] = Counter()  # request → how often workers were lost during its present step

    def next_of(self, running: Collection[int]) -> int | None:
        """The running request whose next step is run alone, of several the lowest id; None: all run together."""
        return min((request_id for request_id in running if request_id in self._alone), default=None)

    def add_losses(self, request_id: int, losses: int) -> None:
        """The request comes from another group, which has lost workers that often during its present step."""
        if losses:
            self.losses[request_id] = losses
        if losses >= MAX_LOSSES:
            self._alone.add(request_id)

    def record_error(self, planned: Collection[int]) -> int | None:
        """A worker has raised an error in a step of these requests. Returns the cause, if that was run alone."""
        if len(planned) == 1 and (request_id := next(iter(planned))) in self._alone:
            return request_id
        self._alone.update(planned)
        return None

    def record_loss(self, planned: Collection[int], *, with_group: bool = False) -> int | None:
        """A worker, or the whole group, was lost in a step of these requests. Returns the probable cause, if known."""
        for request_id in planned:
            self.losses[request_id] = max(self.losses[request_id] + 1, MAX_LOSSES if with_group else 0)
        lone = next(iter(planned)) if len(planned) == 1 else None
        if lone is not None and self.losses[lone] >= MAX_LOSSES + MAX_LONE_LOSSES:
            return lone
        self._alone.update(request_id for request_id in planned if self.losses[request_id] >= MAX_LOSSES)
        return None

    def clear(self, planned: Iterable[int]) -> None:
        """A step of these requests has succeeded, or they have ended."""
        for request_id in planned:
            self._alone.discard(request_id)
            del self.losses[request_id]
