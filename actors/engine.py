"""RayEngine: a decode group on Ray actors for programs that are not asynchronous."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, aclosing
from functools import wraps
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

import ray

from actors.async_engine import AsyncRayEngine
from actors.calls.worker_handle import RunnerFactory
from actors.client.event_loop_thread import CLOSED, EventLoopThread
from actors.connection.ray_connection import LOCAL_RAY, RayConnection, ray_address
from actors.connection.ray_node import CHECK_S
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.errors import ClusterError
from lopa_ray.execution.model_files import pin_model
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.hub.repository import short_name
from lopa_ray.protocol.events import RequestEvent

OnPhase: TypeAlias = Callable[[str], object]


P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AsyncRayEngine, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RayEngine, P], T]:
    """A method that runs a coroutine of the engine in its thread."""

    @wraps(method)
    def run(self: RayEngine, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._loop.run(method(self._running, *arguments, **named))

    return run


class RayEngine(Engine):
    """Master and branch workers of one group, as `Engine`: an `AsyncRayEngine` in a thread of its own. Close it before
    you call `ray.shutdown`: Ray ends a process whose other threads still ask it for something then."""

    def __init__(
        self, engine: AsyncRayEngine, loop: EventLoopThread, connection: RayConnection, resources: ExitStack
    ) -> None:
        """Over an engine that `from_config` has started on that loop. `close` closes `resources`."""
        super().__init__(engine.config, engine.vocabulary, engine.tokenizer)
        self._engine = engine
        self._loop = loop
        self._connection = connection
        # This ends an engine that is never closed, at the latest with the program.
        self._finalizer = weakref.finalize(self, resources.close)

    @classmethod
    def from_config(
        cls,
        config: Config,
        *,
        address: str | None = None,
        runner_factory: RunnerFactory | None = None,
        on_phase: OnPhase = lambda doing: None,
    ) -> Self:
        """Start a group on the Ray at `address`, RAY_ADDRESS, or a local one that ends with its engines. Raises
        CapacityError, CheckpointError, ClusterError, SettingsError, WorkerLostError. `runner_factory` makes each
        worker's runner; tests inject faults through it. `on_phase` is called with each phase in words for a terminal:
        "Starting Ray", "Loading demo on 2 workers"."""
        config = pin_model(config)
        on_phase(_connecting(address or ray_address()))
        ModelSpec.read(config).model.shard(config.group.tensor_parallel_size)
        with ExitStack() as started:
            connection = RayConnection(config, address)
            started.callback(connection.close)
            workers = config.group.num_workers
            on_phase(f"Loading {short_name(config.model.path)} on {workers} worker{'s' * (workers > 1)}")
            loop = EventLoopThread()
            started.callback(loop.close)
            engine = loop.run(AsyncRayEngine.start(config, runner_factory=runner_factory))
            started.callback(loop.call, engine.close)
            return cls(engine, loop, connection, started.pop_all())

    def events(self, sessions: Sequence[RequestSession]) -> Iterator[RequestEvent]:
        """See `Engine.events`. Raises ClusterError if the engine is closed, or Ray was shut down or ended here."""
        engine = self._running
        if engine.lost is not None:
            self._loop.call(engine.revive)
        received: SimpleQueue[RequestEvent | None] = SimpleQueue()
        decoding = self._loop.start(_receive(engine.events(sessions), received))
        decoding.add_done_callback(lambda _: received.put(None))
        try:
            while (event := self._next(received)) is not None:
                yield event
            decoding.result()
        except CancelledError:
            raise ClusterError(CLOSED) from None
        finally:
            decoding.cancel()

    resize = _blocking(AsyncRayEngine.resize)

    @property
    def num_workers(self) -> int:
        return self._engine.num_workers

    @property
    def start_phases(self) -> dict[str, float]:
        """See `AsyncRayEngine.start_phases`; connecting to Ray, or starting it, comes before them."""
        return self._running.start_phases

    status = _blocking(AsyncRayEngine.status)
    checksums = _blocking(AsyncRayEngine.checksums)

    @property
    def weight_version(self) -> int:
        """See `LocalEngine.weight_version`."""
        return self._engine.weight_version

    update_weights = _blocking(AsyncRayEngine.update_weights)
    pause = _blocking(AsyncRayEngine.pause)
    resume = _blocking(AsyncRayEngine.resume)
    is_paused = _blocking(AsyncRayEngine.is_paused)
    sleep = _blocking(AsyncRayEngine.sleep)
    wake_up = _blocking(AsyncRayEngine.wake_up)
    is_sleeping = _blocking(AsyncRayEngine.is_sleeping)
    reset_prefix_cache = _blocking(AsyncRayEngine.reset_prefix_cache)

    def close(self) -> None:
        """End the group, and Ray if the last engine started it; requests in flight fail with WorkerLostError."""
        self._finalizer()

    def _next(self, received: SimpleQueue[RequestEvent | None]) -> RequestEvent | None:
        while True:
            try:
                return received.get(timeout=CHECK_S)
            except Empty:
                self._check_running()

    @property
    def _running(self) -> AsyncRayEngine:
        self._check_running()
        return self._engine

    def _check_running(self) -> None:
        if not self._finalizer.alive:
            raise ClusterError(CLOSED)
        self._connection.check()


def _connecting(address: str) -> str:
    if ray.is_initialized():
        return "Checking the resources of Ray"
    return "Starting Ray" if address == LOCAL_RAY else f"Connecting to Ray at {address}"


async def _receive(
    events: AsyncGenerator[RequestEvent, None], received: SimpleQueue[RequestEvent | None]
) -> None:
    async with aclosing(events):
        async for event in events:
            received.put(event)
