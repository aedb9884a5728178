"""`lopa bench control`: a round of steps on actors with a forward of a given time: plain calls, the connections on
which groups send their steps, and a compiled graph.

There is no model: what a round takes beyond the forward are the messages.
"""

from __future__ import annotations

import asyncio
import pickle
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray.dag import InputNode, MultiOutputNode

from actors.ray_connection import connect_to_ray, ray_address
from actors.step_connection import StepAddress, StepServer, StepThread
from lopa_lab.bench.measurements import Measurements, Row

PLAN, REPORT = bytes(8_000), bytes(3_000)
"""About as large as the plan of a step with 8 branches, and the report of one worker."""

WARM_UPS = 20

CONNECT_TIMEOUT_S = 30.0


class FakeWorker:
    """Answers after the time of a forward."""

    def __init__(self, forward_s: float, *, busy: bool) -> None:
        """`busy`: the forward takes processor time, as on a CPU; else the process sleeps, as beside a device."""
        self._forward_s, self._busy = forward_s, busy

    def ping(self) -> None:
        """Return while the worker is alive."""

    def connect(self, address: StepAddress) -> None:
        """Take plans on a connection as well, as a group's worker does."""
        self._steps = StepThread(address, self.execute, CONNECT_TIMEOUT_S)

    def execute(self, plan: bytes) -> bytes:
        """One forward."""
        if self._busy:
            began = time.thread_time()
            while time.thread_time() - began < self._forward_s:
                pass
        else:
            time.sleep(self._forward_s)
        return REPORT


class FakeMaster:
    """Calls its workers from an event loop, as a group's master does."""

    def __init__(self, workers: int, forward_s: float, *, busy: bool) -> None:
        remote: Any = ray.remote(FakeWorker).options(num_cpus=0)
        self._workers = [remote.remote(forward_s, busy=busy) for _ in range(workers)]
        self._server = StepServer()

    async def measure(self, rounds: int) -> Row:
        """The figures of so many rounds each of plain calls, over connections, and of a graph."""
        calls = await _median_ms(self._call, rounds)
        for worker in self._workers:
            await worker.connect.remote(await self._server.address(worker))
        connections = await _median_ms(self._send, rounds)
        began = time.perf_counter()
        with InputNode() as plan:
            outputs = MultiOutputNode([worker.execute.bind(plan) for worker in self._workers])
        graph = outputs.experimental_compile()
        _execute(graph)
        compile_s = time.perf_counter() - began
        # A thread waits for the graph beside the event loop.
        graph_ms = await _median_ms(partial(asyncio.to_thread, _execute, graph), rounds)
        return {
            "calls ms": calls,
            "connections ms": connections,
            "gain %": 100 * (1 - connections / calls),
            "compiled graph ms": graph_ms,
            "graph's gain %": 100 * (1 - graph_ms / calls),
            "compile s": compile_s,
        }

    async def _call(self) -> None:
        await asyncio.gather(*(worker.execute.remote(PLAN) for worker in self._workers))

    async def _send(self) -> None:
        messages = [(worker, pickle.dumps(PLAN, pickle.HIGHEST_PROTOCOL)) for worker in self._workers]
        await asyncio.gather(*(self._server.execute(*message) for message in messages))


def _execute(graph: Any) -> None:
    for reference in graph.execute(PLAN):
        reference.get()


async def _median_ms(round_: Callable[[], Awaitable[None]], rounds: int) -> float:
    times = []
    for _ in range(WARM_UPS + rounds):
        began = time.perf_counter()
        await round_()
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[WARM_UPS:])


def measure_control(workers: Sequence[int], forward_ms: float, rounds: int, *, busy: bool) -> Measurements:
    """Time `rounds` rounds for each number of workers. Raises ClusterError if Ray cannot be started or reached."""
    connect_to_ray(ray_address(), num_cpus=1)
    try:
        rows = [_measure(count, forward_ms, rounds, busy) for count in workers]
    finally:
        ray.shutdown()
    return Measurements(
        ("workers", "forward ms", "busy"),
        rows,
        f"Medians of wall time over {rounds} rounds: {len(PLAN):,} bytes to each worker and {len(REPORT):,} back, from "
        "an event loop in an actor. connections: what steps of groups travel on. Gains are over plain calls. busy: "
        "forwards take processor time, else processes sleep. compile: making a graph, with its first round; a graph "
        "has to be made anew whenever a worker is lost or joins.",
    )


def _measure(workers: int, forward_ms: float, rounds: int, busy: bool) -> Row:
    remote: Any = ray.remote(FakeMaster).options(num_cpus=0)
    master = remote.remote(workers, forward_ms / 1000, busy=busy)
    figures: Row = ray.get(master.measure.remote(rounds))
    ray.kill(master)
    return {"workers": workers, "forward ms": forward_ms, "busy": busy, **figures}
