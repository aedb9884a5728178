"""A group that decodes while faults happen to it, compared with the same requests in one process."""

from __future__ import annotations

import contextlib
import copy
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from actors.async_engine import AsyncRayEngine
from actors.engine import RayEngine
from actors.group.master_status import MasterStatus
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CapacityError, WorkerLostError
from lopa_ray.protocol.slot_checksum import SlotChecksum
from support.fault_injection import FaultInjection
from support.processes import send_signal
from support.tiny_model import PROMPTS, SETTINGS, TINY_MODEL, tiny_config
from support.waiting import TIMEOUT_S, wait_until

NUM_WORKERS = 3

RequestKey = tuple[int, str]
"""Which of PROMPTS, which of SETTINGS."""

ComparableResult = tuple[list[int], int, int]


def nightly(*values: object) -> list[Any]:
    """Parameters of tests that run at night."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def random_requests(rng: random.Random, count: int) -> list[RequestKey]:
    return [(rng.randrange(len(PROMPTS)), rng.choice(list(SETTINGS))) for _ in range(count)]


def comparable(result: GenerationResult) -> ComparableResult:
    """What must not depend on where a request was decoded, and on what happened there."""
    return result.token_ids, result.steps, result.forwards


class ReferenceResults:
    """The result of each request in one process. Each one is decoded once, on demand."""

    def __init__(self, config: Config) -> None:
        self.model = config.model
        self._engine = LocalEngine.from_config(config)
        self._results: dict[RequestKey, ComparableResult] = {}

    def __getitem__(self, request: RequestKey) -> ComparableResult:
        if request not in self._results:
            prompt, name = request
            self._results[request] = comparable(self._engine.generate(PROMPTS[prompt], SETTINGS[name]))
        return self._results[request]

    def with_results(self, results: Mapping[RequestKey, ComparableResult]) -> ReferenceResults:
        """The same, but for these requests."""
        changed = copy.copy(self)
        changed._results = {**self._results, **results}
        return changed


@cache
def reference_of(folder: Path = TINY_MODEL) -> ReferenceResults:
    """Those of a checkpoint with the settings of all tests."""
    return ReferenceResults(tiny_config(model={"path": str(folder)}))


@dataclass
class GroupUnderTest:
    """Runs batches of random requests and compares every token."""

    engine: RayEngine
    reference: ReferenceResults
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    tolerance: float = 0.0
    """How far K/V that workers computed by themselves may be from each other: by rounding, on accelerators."""
    requests: int = 0
    step_gaps: list[tuple[float, float]] = field(default_factory=list)
    """From one step's arrival to the next, while requests were in flight, as `time.time`."""

    def run_batch(self, count: int, during: Callable[[], object] | None = None, after: int = 5) -> None:
        """Decode that many random requests; `during` is called when `after` of their steps, or half, are done."""
        requests = random_requests(self.rng, count)
        after = min(after, sum(self.reference[request][1] for request in requests) // 2)
        arrivals: list[float] = []

        def on_step(index: int, step: TraceStep) -> None:
            arrivals.append(time.time())
            if len(arrivals) == after and during is not None:
                during()

        sessions = [self.engine.create_session(PROMPTS[prompt], SETTINGS[name]) for prompt, name in requests]
        results = dict(self.engine.run(sessions, on_step=on_step))
        for index, request in enumerate(requests):
            result = results[index]
            assert isinstance(result, GenerationResult), result
            assert comparable(result) == self.reference[request]
        self.step_gaps += pairwise(arrivals)
        self.requests += count

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Decode until the condition is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not _holds(condition):
            assert time.monotonic() < deadline, "the condition is still false"
            self.run_batch(3)

    def wait_for_workers(self, workers: int) -> None:
        """Wait until the group has that many workers, and no more are to come; decode with them, and see
        that all have the same in their caches. It may learn of a loss only as it decodes, and then waits again."""

        def complete() -> bool:
            status = self.engine.status()
            return (status.workers, status.pending_workers) == (workers, 0)

        deadline = time.monotonic() + TIMEOUT_S
        caches: list[list[SlotChecksum]] = []
        while len(caches) != workers:
            while not _holds(complete):
                assert time.monotonic() < deadline, f"the group has not {workers} workers"
                time.sleep(0.1)
            self.run_batch(3)
            with contextlib.suppress(WorkerLostError):
                caches = self.engine.checksums()
        first, *others = caches
        for other in others:
            assert all(one.agrees(two, self.tolerance) for one, two in zip(first, other, strict=True))

    def pause_s(self, moment: float) -> float:
        """Seconds without a step around the moment of a fault; 0 if nothing was decoded."""
        return max((end - start for start, end in self.step_gaps if end > moment > start - 0.2), default=0.0)


def _holds(condition: Callable[[], bool]) -> bool:
    """A group whose master a busy machine keeps from answering is replaced, and its status is an error until then."""
    try:
        return condition()
    except WorkerLostError:
        return False


def wait_for_status(engine: RayEngine, condition: Callable[[MasterStatus], bool], what: str) -> None:
    """Wait until a group's status, which is an error while another group takes its place, is like that."""
    wait_until(lambda: _holds(lambda: condition(engine.status())), what)


@contextlib.contextmanager
def group_with_faults(
    folder: Path,
    reference: ReferenceResults,
    model: Mapping[str, object] | None = None,
    tolerance: float = 0.0,
    **settings: object,
) -> Iterator[tuple[GroupUnderTest, FaultInjection]]:
    """A group whose workers trigger the faults in that folder; `settings` are those of `config.group`, and `model`
    those of `config.model`, besides the checkpoint of the reference."""
    faults = FaultInjection(folder)
    model = {"path": reference.model.path, **(model or {})}
    config = tiny_config(model=model, group={"num_workers": NUM_WORKERS, **settings})
    try:
        with RayEngine.from_config(config, runner_factory=faults) as engine:
            yield GroupUnderTest(engine, reference, tolerance=tolerance), faults
    finally:
        for pid in faults.triggered():
            send_signal(pid, signal.SIGKILL)  # a stopped process does not end by itself


def refuse_other_groups(engine: AsyncRayEngine | RayEngine) -> None:
    """From now on no other group takes the place of one that this engine loses."""
    running = engine if isinstance(engine, AsyncRayEngine) else engine._running

    def refuse() -> None:
        raise CapacityError("there is no room for another group")

    running._group.__dict__["_create_master"] = refuse
