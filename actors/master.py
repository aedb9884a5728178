"""Master: the step loop of one decode group.

A plain class with async methods; `RayEngine` and the serving group wrap it in an actor. Clients
open a stream of events; their requests join the loop at the next step. Each step is one scatter
and one gather over the branch workers, and one message per client. A step that fails because
workers were lost is run again on those that are left.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.placement_group import PlacementGroup

from actors.autoscaling_loop import AutoscalingLoop
from actors.branch_worker import RunnerFactory, WorkerInfo, default_runner
from actors.client_streams import ClientStreams, StepEvents
from actors.group_membership import GroupMembership
from actors.rpc import GONE
from lopa_ray.config.config import Config
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import LopaError, ProtocolError, SettingsError, TransferError, WorkerLostError
from lopa_ray.execution.kv_cache import SlotChecksum
from lopa_ray.protocol.plan import StepReport, StepTiming
from lopa_ray.scheduling.scheduler import Scheduler

MAX_STREAMS = 1000
"""Calls that a master serves at once."""

MAX_REPEATS = 3
"""How often in a row a step is run again because workers lost touch though none is lost."""

IDLE_CHECK_S = 1.0
"""How often workers are asked whether they are alive while there is nothing to decode."""


@dataclass(frozen=True, slots=True)
class MasterStatus:
    """How a group is doing."""

    workers: int
    """Those who take part in steps."""
    coming: int
    """Those who wait for a place in the cluster, load the model, or wait for the next step."""
    wanted: int
    """How many there should be: as configured, as somebody asked for, or as the load has it."""
    max_num_seqs: int
    in_flight: int
    waiting: int
    steps: int
    stalled_s: float
    """Seconds since the step under way began; 0 while idle."""
    broken: LopaError | None
    problem: LopaError | None
    """Why the last attempt to get another worker failed; None once one came in after it."""
    prefix_hits: int
    """Requests that found K/V of the beginning of their prompt."""
    prefix_positions: int
    """Positions that they did not have to compute."""


class Master:
    """Owns the scheduler and the workers. All state changes happen on its event loop."""

    def __init__(
        self,
        config: Config,
        runner_factory: RunnerFactory = default_runner,
        places: PlacementGroup | None = None,
    ) -> None:
        """Nothing that can fail: an actor's constructor cannot say why it did. See `start`."""
        self._config = config
        self._runner_factory = runner_factory
        self._places = places
        self._scheduler = Scheduler.from_config(config)
        self._awake = asyncio.Event()
        """There may be something to do."""
        self._turn = asyncio.Lock()
        """Held by whoever calls the workers."""
        self._clients = ClientStreams(
            self._scheduler, self._awake.set, journaled=config.group.resume_timeout_s > 0
        )
        self._follower: AutoscalingLoop | None = None
        self._loop: asyncio.Task[None] | None = None
        self._steps = 0
        self._step_began: float | None = None
        self._repeats = 0
        self._suspects: deque[int] = deque()
        """Requests of a step that failed on a worker: each one's next step is run alone, to find the cause."""

    async def start(self) -> WorkerInfo:
        """Create the workers and wait until they are ready.

        Raises CapacityError, CheckpointError, SettingsError, WorkerLostError.
        """
        self._crew = GroupMembership(self._config, self._runner_factory, self._places, self._awake.set)
        info = await self._crew.start()
        self._loop = asyncio.create_task(self._run())
        if self._config.group.scaling is not None:
            self._follower = AutoscalingLoop(self._config.group.scaling, self._crew, self._scheduler)
        return info

    # Clients

    async def stream(
        self, client: str, sessions: Mapping[int, DecodeSession], *, stay: bool = False
    ) -> AsyncIterator[StepEvents]:
        """The events of a client's requests: those given here, and with `stay` those that it submits later.

        With `stay` the first item is empty and says that `submit` may be called; without, the stream
        ends when all requests have. Cancelling the call frees their slots at the next step. Raises
        ProtocolError if the client has a stream already.
        """
        async with aclosing(self._clients.stream(client, sessions, stay)) as events:
            async for event in events:
                yield event

    async def submit(self, client: str, sessions: Mapping[int, DecodeSession]) -> None:
        """Queue requests under the client's own numbers; events go to its stream.

        Raises ProtocolError without an open stream, or for a session that is finished already.
        """
        self._clients.submit(client, sessions)

    async def cancel(self, client: str, numbers: list[int]) -> None:
        """Free the requests' slots at the next step. Those that have ended are passed over."""
        self._clients.cancel(client, numbers)

    # Operators

    async def resize(self, num_workers: int) -> None:
        """Have that many workers, while requests decode. Returns at once; `status` says how far it is.

        Fewer: the others leave at the next step. More: they come as Ray places them and their model
        is loaded; no step waits. A group that follows its load goes on from there. Raises SettingsError for
        less than 1, or beyond the bounds of `group.scaling`, and what broke the group.
        """
        if not isinstance(num_workers, int) or isinstance(num_workers, bool) or num_workers < 1:
            raise SettingsError(f"got {num_workers!r} workers; allowed: a whole number from 1 on")
        if self._clients.broken is not None:
            raise self._clients.broken
        if self._follower is not None:
            self._follower.resize(num_workers)
        self._crew.resize(num_workers)

    async def checksums(self) -> list[list[SlotChecksum]]:
        """Per worker, per slot. Raises ProtocolError while requests are in flight."""
        if self._scheduler.busy:
            raise ProtocolError("checksums are compared while the group is idle; requests are in flight")
        async with self._turn:
            return await self._crew.pool.checksums()

    async def status(self) -> MasterStatus:
        """How the group is doing, right now."""
        began = self._step_began
        return MasterStatus(
            workers=len(self._crew.pool),
            coming=self._crew.coming,
            wanted=self._crew.target,
            max_num_seqs=self._config.model.max_num_seqs,
            in_flight=self._scheduler.in_flight,
            waiting=self._scheduler.waiting,
            steps=self._steps,
            stalled_s=0.0 if began is None else time.monotonic() - began,
            broken=self._clients.broken,
            problem=self._crew.problem,
            prefix_hits=self._scheduler.prefix_index.hit_requests,
            prefix_positions=self._scheduler.prefix_index.hit_positions,
        )

    # The step loop

    async def _run(self) -> None:
        """Step after step. Whatever fails, the loop goes on with those that are left, if there are any."""
        while self._clients.broken is None:
            try:
                await self._until_there_is_work()
                self._step_began = time.monotonic()
                async with self._turn:
                    await self._step()
                self._repeats = 0
            except WorkerLostError as error:
                if not len(self._crew.pool):
                    self._end(error)
            except TransferError as error:
                self._repeats += 1
                if self._repeats > MAX_REPEATS:
                    self._end(WorkerLostError(f"the workers do not reach each other: {error}"))
            except Exception as error:
                self._suspect(error)
            finally:
                self._step_began = None

    async def _until_there_is_work(self) -> None:
        while not self._scheduler.busy and not self._crew.due:
            self._awake.clear()
            try:
                await asyncio.wait_for(self._awake.wait(), IDLE_CHECK_S)
            except TimeoutError:
                async with self._turn:
                    await self._crew.pool.check()

    async def _step(self) -> None:
        """One step of all requests in flight: change the membership where that is due, plan, scatter,
        gather, take the reports in, tell the clients. If it fails, the next call runs it again."""
        clock = time.perf_counter
        if self._crew.due:
            await self._crew.regroup(self._scheduler)
        began = clock()
        plans = self._scheduler.plan(len(self._crew.pool), self._suspects[0] if self._suspects else None)
        if not plans:
            self._clients.publish(self._scheduler.drain(), None)
        else:
            planned = clock()
            calls = self._crew.pool.scatter(plans)
            sent = clock()
            reports = await self._crew.pool.gather(calls)
            gathered = clock()
            events = self._scheduler.advance(reports)
            ended = clock()
            self._steps += 1
            if self._follower is not None:
                self._follower.meter.record_step(
                    sum(len(report.reports) for report in reports), ended - began
                )
            self._clients.publish(events, _timing(began, planned, sent, gathered, ended, reports))
        if self._suspects:
            self._suspects.popleft()

    def _suspect(self, error: Exception) -> None:
        """A worker failed by itself, but which request made it? Alone, it is the one to end."""
        if self._suspects:
            self._scheduler.abort(self._suspects.popleft(), error)
        elif self._scheduler.running_ids:
            self._suspects.extend(self._scheduler.running_ids)
        else:
            self._end(WorkerLostError(f"the group failed while nothing was in flight: {error}"))
        self._crew.pool.stands = False

    def _end(self, error: LopaError) -> None:
        """The group cannot go on: every request, present and future, gets the reason."""
        self._clients.broken = error
        if self._follower is not None:
            self._follower.close()
        self._crew.close()
        self._scheduler.abort_all(error)
        self._clients.publish(self._scheduler.drain(), None)


def _timing(
    began: float, planned: float, sent: float, gathered: float, ended: float, reports: list[StepReport]
) -> StepTiming:
    slowest = max(report.commit_s + report.forward_s for report in reports)
    return StepTiming(
        plan=planned - began,
        scatter=sent - planned,
        commit=max(report.commit_s for report in reports),
        forward=max(report.forward_s for report in reports),
        gather=max(0.0, gathered - sent - slowest),
        select=ended - gathered,
    )


def start_master(
    config: Config,
    runner_factory: RunnerFactory = default_runner,
    places: PlacementGroup | None = None,
) -> Any:
    """A master as an actor; its `start` is still to be called. Its workers are its children and end with it."""
    # The master computes next to nothing; it must not take a CPU from its workers.
    remote: Any = ray.remote(Master).options(num_cpus=0, max_restarts=0, max_concurrency=MAX_STREAMS)
    return remote.remote(config, runner_factory, places)


@contextmanager
def unwrapped() -> Iterator[None]:
    """Around results of a master's calls: errors of ours come without Ray's wrapping."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, LopaError):
            raise error.cause from None
        raise
    except GONE as error:
        raise WorkerLostError(f"the group's master died: {error}") from None
