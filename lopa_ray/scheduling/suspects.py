"""Suspects: requests that may be why a step failed, until each has made a step alone. It does no I/O.

The rule for every loss, of a worker or of a whole group, is here. A scheduler applies it to its requests, and a client
to those whose group was lost without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

MAX_LOSSES = 2
"""After this many losses of workers in the same step of a request, it is run alone. The loss of its group counts for as
many."""

MAX_LONE_LOSSES = 2
"""So many further ones end it. A single one is chance too often: after the loss of a group each request runs alone, and
Ray does not tell a process that was killed from one that crashed."""


class Suspects:
    """A step of several requests failed, and one of them is the cause: each one's next step is run alone.

    An error that a worker raises makes suspects at once. The loss of a worker may have nothing to do with the requests,
    so it makes suspects of those that have lost workers `MAX_LOSSES` times in the step that they are in.
    """

    def __init__(self) -> None:
        self._suspects: set[int] = set()
        self._losses: dict[int, int] = {}
        """Request → how often workers were lost during the step that it is in."""

    def next_of(self, running: Collection[int]) -> int | None:
        """The running request whose next step is to be run alone, the one with the lowest id; None: all of them
        together."""
        return min((request_id for request_id in running if request_id in self._suspects), default=None)

    def losses(self, request_id: int) -> int:
        """How often workers were lost during the step that the request is in."""
        return self._losses.get(request_id, 0)

    def all_losses(self) -> dict[int, int]:
        """`losses` of the requests that have any."""
        return dict(self._losses)

    def add_losses(self, request_id: int, losses: int) -> None:
        """The request comes from another group, which has lost workers that often during the step that it is in."""
        if losses:
            self._losses[request_id] = losses
        if losses >= MAX_LOSSES:
            self._add([request_id])

    def record_error(self, planned: Collection[int]) -> int | None:
        """A worker has raised an error in a step of these requests. Returns the one that caused it, if it is known: a
        suspect that was alone."""
        if len(planned) == 1 and (request_id := next(iter(planned))) in self._suspects:
            return request_id
        self._add(planned)
        return None

    def record_loss(self, planned: Collection[int], *, with_group: bool = False) -> int | None:
        """A worker, or the whole group, was lost in a step of these requests. Returns the one that caused it, if that
        is to be assumed."""
        for request_id in planned:
            least = MAX_LOSSES if with_group else 0
            self._losses[request_id] = max(self.losses(request_id) + 1, least)
        most = MAX_LOSSES + MAX_LONE_LOSSES
        if len(planned) == 1 and self.losses(request_id := next(iter(planned))) >= most:
            return request_id
        self._add(request_id for request_id in planned if self.losses(request_id) >= MAX_LOSSES)
        return None

    def clear(self, planned: Iterable[int]) -> None:
        """A step of these requests has succeeded, or they have ended."""
        for request_id in planned:
            self._suspects.discard(request_id)
            self._losses.pop(request_id, None)

    def _add(self, request_ids: Iterable[int]) -> None:
        self._suspects.update(request_ids)
