"""`lopa bench control`: a round of steps on actors with a forward of a given time: plain calls, the connections on
which groups send their steps, and a compiled graph.

There is no model: what a round takes beyond the forward are the messages.
"""

from __future__ import annotations

import asyncio
import pickle
import statistics
import time
from collections.abc import Sequence
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

    async def time_calls(self, rounds: int) -> list[float]:
        """Seconds of each round of plain calls."""
        return [await self._timed(self._call()) for _ in range(WARM_UPS + rounds)][WARM_UPS:]

    async def _call(self) -> None:
        await asyncio.gather(*(worker.execute.remote(PLAN) for worker in self._workers))

    async def time_connections(self, rounds: int) -> list[float]:
        """Seconds of each round over connections."""
        for worker in self._workers:
            await worker.connect.remote(await self._server.address(worker))
        return [await self._timed(self._send()) for _ in range(WARM_UPS + rounds)][WARM_UPS:]

    async def _send(self) -> None:
        messages = [(worker, pickle.dumps(PLAN, pickle.HIGHEST_PROTOCOL)) for worker in self._workers]
        await asyncio.gather(*(self._server.execute(*message) for message in messages))

    async def compile(self) -> float:
        """Make a graph; returns how many seconds that took, its first round included."""
        began = time.perf_counter()
        with InputNode() as plan:
            outputs = MultiOutputNode([worker.execute.bind(plan) for worker in self._workers])
        self._graph: Any = outputs.experimental_compile()
        self._execute()
        return time.perf_counter() - began

    async def time_graph(self, rounds: int) -> list[float]:
        """Seconds of each round of the graph, for which a thread waits beside the event loop."""
        loop = asyncio.get_running_loop()
        return [
            await self._timed(loop.run_in_executor(None, self._execute)) for _ in range(WARM_UPS + rounds)
        ][WARM_UPS:]

    def _execute(self) -> None:
        for reference in self._graph.execute(PLAN):
            reference.get()

    @staticmethod
    async def _timed(round_: Any) -> float:
        began = time.perf_counter()
        await round_
        return time.perf_counter() - began


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
    calls = statistics.median(ray.get(master.time_calls.remote(rounds)))
    connections = statistics.median(ray.get(master.time_connections.remote(rounds)))
    compile_s = ray.get(master.compile.remote())
    graph = statistics.median(ray.get(master.time_graph.remote(rounds)))
    ray.kill(master)
    return {
        "workers": workers,
        "forward ms": forward_ms,
        "busy": busy,
        "calls ms": 1000 * calls,
        "connections ms": 1000 * connections,
        "gain %": 100 * (1 - connections / calls),
        "compiled graph ms": 1000 * graph,
        "graph's gain %": 100 * (1 - graph / calls),
        "compile s": compile_s,
    }
