"""WorkQueue: chunks go to groups as these have room; a group that is lost is replaced, its chunks are requeued. Ray
Data would need pyarrow and pandas everywhere, and leave order, restarts and lost groups to this project all the same;
for its pipelines there is `LopaPredictor`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ray

from actors.calls.actor_errors import unwrapped_errors
from actors.connection.ray_node import RayNode
from actors.workers.placement import Reservation, scheduled_into
from cluster.batch.source import Chunk
from cluster.jobs.group import ChunkResult, JobGroup
from lopa_ray.engine.config import Config
from lopa_ray.errors import CapacityError, WorkerLostError

CHUNKS_IN_FLIGHT = 2  # a group gets the next chunk before it has finished one, so that its slots stay filled
MAX_ATTEMPTS = 3  # a chunk that was in flight when this many groups were lost is abandoned
MAX_LOST_GROUPS = 5  # groups that may be lost, per group of the job, with no chunk finished in between
POLL_S = 2.0  # how long to wait for a result before progress is reported without one


@dataclass(slots=True, eq=False)
class _GroupHandle:
    actor: Any
    reservation: Reservation
    start_call: Any  # reference of the call of `start`; None once it has returned
    in_flight: dict[Any, Chunk] = field(default_factory=dict)  # by the reference of its call
    isolated: bool = False  # its chunk was in flight when a group was lost, and gets no company

    @property
    def num_prompts(self) -> int:
        return sum(len(chunk.lines) for chunk in self.in_flight.values())

    def has_room(self, min_prompts: int) -> bool:
        if self.start_call is not None or (self.isolated and self.in_flight):
            return False
        return len(self.in_flight) < CHUNKS_IN_FLIGHT or self.num_prompts < min_prompts


class WorkQueue:
    """Decodes chunks on a fixed number of groups, on the Ray that this process is connected to."""

    def __init__(
        self,
        config: Config,
        groups: int,
        *,
        raw: bool,
        on_group_lost: Callable[[str], None],
        on_poll: Callable[[int], None],
    ) -> None:
        """Starts the groups. `on_group_lost` gets a message; `on_poll` is called regularly with the number of groups at
        work."""
        self._config, self._raw = config, raw
        self._on_group_lost, self._on_poll = on_group_lost, on_poll
        self._node = RayNode.of_this_process()
        self._min_prompts = 2 * config.model.max_num_seqs  # in flight of a group, where chunks are small
        self._queue: deque[Chunk] = deque()
        self._attempts: Counter[int] = Counter()
        self._lost_groups = 0
        self.max_lost_groups = MAX_LOST_GROUPS * groups
        self._groups: list[_GroupHandle] = []
        for _ in range(groups):
            self._add_group()
        self.abandoned: list[Chunk] = []

    def _add_group(self) -> None:
        reservation = Reservation(self._config)
        # It mostly waits, so it reserves no CPU; its workers do.
        remote: Any = ray.remote(JobGroup).options(
            num_cpus=0,
            max_restarts=0,
            max_concurrency=self._min_prompts + 2,
            **scheduled_into(reservation.placement_group),
        )
        actor = remote.remote(self._config.given(), self._raw)
        self._groups.append(_GroupHandle(actor, reservation, actor.start.remote()))

    def run(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, ChunkResult]]:
        """Chunks with their results, as they come; chunks that are missing at the end are in `abandoned`. Raises what
        starting the groups raises, WorkerLostError if group after group is lost, and ClusterError if Ray on this node
        has ended."""
        while True:
            self._dispatch(chunks)
            calls = {call: group for group in self._groups for call in group.in_flight}
            if not calls and not self._has_next(chunks):
                return
            starts = {group.start_call: group for group in self._groups if group.start_call is not None}
            ready, _ = ray.wait([*calls, *starts], num_returns=1, timeout=POLL_S)
            self._node.check()
            for call in ready:
                group = calls.get(call) or starts[call]
                try:
                    with unwrapped_errors():
                        result: ChunkResult | None = ray.get(call)
                except CapacityError as error:
                    self._remove(group, error)
                except WorkerLostError as error:
                    self._replace(group, error)
                else:
                    if result is None:
                        group.start_call = None
                    else:
                        self._lost_groups = 0
                        yield group.in_flight.pop(call), result
            self._on_poll(sum(group.start_call is None for group in self._groups))

    def _has_next(self, chunks: Iterator[Chunk]) -> bool:
        """Whether there is a chunk to decode; it is at the head of the queue then."""
        if not self._queue and (chunk := next(chunks, None)) is not None:
            self._queue.append(chunk)
        return bool(self._queue)

    def _dispatch(self, chunks: Iterator[Chunk]) -> None:
        """Send chunks, from the head of the queue, to the group with the fewest prompts, as long as one has room."""
        while self._has_next(chunks):
            retried = self._attempts[self._queue[0].index] > 0
            free = [group for group in self._groups if group.has_room(self._min_prompts)]
            if retried:
                free = [group for group in free if not group.in_flight]
            if not free:
                return
            group, chunk = min(free, key=lambda group: group.num_prompts), self._queue.popleft()
            group.isolated = retried
            group.in_flight[group.actor.decode.remote(chunk.lines)] = chunk

    def _replace(self, group: _GroupHandle, error: WorkerLostError) -> None:
        """Raises the error if too many groups were lost."""
        self._lost_groups += 1
        if self._lost_groups > self.max_lost_groups:
            lost = f"{self._lost_groups} groups were lost and no chunk finished"
            raise WorkerLostError(f"{lost}; the last: {error}")
        self._on_group_lost(f"a group was lost and is replaced: {str(error).splitlines()[0]}")
        self._retire(group)
        self._add_group()

    def _remove(self, group: _GroupHandle, error: CapacityError) -> None:
        """There is no room any more for a group. Raises the error if it was the last."""
        if len(self._groups) == 1:
            raise error
        self._on_group_lost(f"going on with {len(self._groups) - 1} groups: {error}")
        self._retire(group)

    def _retire(self, group: _GroupHandle) -> None:
        _kill(group)
        self._groups.remove(group)
        for chunk in reversed(group.in_flight.values()):
            self._attempts[chunk.index] += 1
            if self._attempts[chunk.index] < MAX_ATTEMPTS:
                self._queue.appendleft(chunk)
            else:
                self.abandoned.append(chunk)

    def close(self) -> None:
        for group in self._groups if self._node.alive else []:
            _kill(group)
        self._groups = []


def _kill(group: _GroupHandle) -> None:
    ray.kill(group.actor)
    group.reservation.release()
