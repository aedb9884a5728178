"""WorkQueue: chunks go to groups as these have room; a group that is lost is replaced, its chunks go back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray

from actors.placement import Reservation, scheduled_into
from actors.rpc import unwrapped_errors
from cluster.jobs.group import Decoded, JobGroup
from cluster.jobs.source import Chunk
from lopa_ray.config.config import Config
from lopa_ray.errors import CapacityError, WorkerLostError

CHUNKS_IN_HAND = 2
"""A group gets the next chunk before it has finished one, so that its slots stay filled."""

MAX_ATTEMPTS = 3
"""A chunk that was in hand when so many groups were lost is given up."""

MAX_LOSSES = 5
"""Groups that may be lost, per group of the job, with no chunk finished in between."""

WAKE_S = 2.0
"""How long to wait for a result before progress is reported without one."""


@dataclass(slots=True, eq=False)
class _Group:
    actor: Any
    reservation: Reservation
    starting: Any
    """Call of `start`; None once it has returned."""
    hands: dict[Any, Chunk] = field(default_factory=dict)
    """Call → the chunk that it decodes."""
    alone: bool = False
    """Has a chunk that was in hand when a group was lost, and gets no other beside it."""

    @property
    def lines(self) -> int:
        return sum(len(chunk.lines) for chunk in self.hands.values())

    def has_room(self, lines: int) -> bool:
        if self.starting is not None or (self.alone and self.hands):
            return False
        return len(self.hands) < CHUNKS_IN_HAND or self.lines < lines


class WorkQueue:
    """Decodes chunks on a fixed number of groups, on the Ray that this process is connected to."""

    def __init__(
        self,
        config: Config,
        groups: int,
        *,
        raw: bool,
        on_loss: Callable[[str], None],
        on_wake: Callable[[int], None],
    ) -> None:
        """Starts the groups. `on_loss` is told what was lost; `on_wake`, now and then, how many groups
        are at work: others wait for a place or load the model."""
        self._config = config
        self._raw = raw
        self._on_loss = on_loss
        self._on_wake = on_wake
        self._fill = 2 * config.model.max_num_seqs
        """Prompts that a group has at least, where chunks are smaller than its slots."""
        self._queue: deque[Chunk] = deque()
        self._attempts: Counter[int] = Counter()
        self._losses = 0
        self.most_losses = MAX_LOSSES * groups
        self._groups: list[_Group] = []
        for _ in range(groups):
            self._add_group()
        self.given_up: list[Chunk] = []

    def _add_group(self) -> None:
        reservation = Reservation(self._config)
        # It waits more than it computes: the places are for its workers.
        remote: Any = ray.remote(JobGroup).options(
            num_cpus=0,
            max_restarts=0,
            max_concurrency=self._fill + 2,
            **scheduled_into(reservation.placement_group),
        )
        actor = remote.remote(self._config.as_dict(), self._raw)
        self._groups.append(_Group(actor, reservation, actor.start.remote()))

    def run(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Decoded]]:
        """Chunks with their results, as they come; those that are missing at the end are in `given_up`.

        Raises what starting the groups raises, and WorkerLostError if group after group is lost.
        """
        while True:
            self._hand_out(chunks)
            calls = {call: group for group in self._groups for call in group.hands}
            if not calls and not self._another(chunks):
                return
            starts = {group.starting: group for group in self._groups if group.starting is not None}
            for call in ray.wait([*calls, *starts], num_returns=1, timeout=WAKE_S)[0]:
                group = calls.get(call) or starts[call]
                try:
                    with unwrapped_errors():
                        result: Decoded | None = ray.get(call)
                except CapacityError as error:
                    self._remove(group, error)
                except WorkerLostError as error:
                    self._replace(group, error)
                else:
                    if result is None:
                        group.starting = None
                    else:
                        self._losses = 0
                        yield group.hands.pop(call), result
            self._on_wake(sum(group.starting is None for group in self._groups))

    def _another(self, chunks: Iterator[Chunk]) -> bool:
        """Whether a chunk waits, at the head of the queue."""
        if not self._queue and (chunk := next(chunks, None)) is not None:
            self._queue.append(chunk)
        return bool(self._queue)

    def _hand_out(self, chunks: Iterator[Chunk]) -> None:
        """The head of the queue goes to the group that has the least, as long as there is one with room."""
        while self._another(chunks):
            suspect = self._attempts[self._queue[0].index] > 0
            free = [group for group in self._groups if group.has_room(self._fill)]
            if suspect:
                free = [group for group in free if not group.hands]
            if not free:
                return
            group, chunk = min(free, key=lambda group: group.lines), self._queue.popleft()
            group.alone = suspect
            group.hands[group.actor.decode.remote(chunk.lines)] = chunk

    def _replace(self, group: _Group, error: WorkerLostError) -> None:
        """Raises the error if too many groups were lost."""
        self._losses += 1
        if self._losses > self.most_losses:
            raise WorkerLostError(f"{self._losses} groups were lost and no chunk finished; the last: {error}")
        self._on_loss(f"a group was lost and is replaced: {str(error).splitlines()[0]}")
        self._dissolve(group)
        self._add_group()

    def _remove(self, group: _Group, error: CapacityError) -> None:
        """There is no room any more for a group. Raises the error if it was the last."""
        if len(self._groups) == 1:
            raise error
        self._on_loss(f"going on with {len(self._groups) - 1} groups: {error}")
        self._dissolve(group)

    def _dissolve(self, group: _Group) -> None:
        _end(group)
        self._groups.remove(group)
        for chunk in reversed(group.hands.values()):
            self._attempts[chunk.index] += 1
            if self._attempts[chunk.index] < MAX_ATTEMPTS:
                self._queue.appendleft(chunk)
            else:
                self.given_up.append(chunk)

    def close(self) -> None:
        """End all groups."""
        for group in self._groups:
            _end(group)
        self._groups = []


def _end(group: _Group) -> None:
    ray.kill(group.actor)
    group.reservation.release()
