"""A group that decodes while things happen to it, against the same requests in one process."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from actors.engine import RayEngine
from lopa_ray.config.config import Config
from lopa_ray.decoding.result import GenerationResult, TraceStep
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.kv_cache import SlotChecksum
from support.fault_injection import FaultInjection
from support.groups import PROMPTS, SETTINGS, config

WORKERS = 3

PATIENCE_S = 120.0
"""For what must come about, on machines that are busy with something else."""

Essence = tuple[list[int], int, int]


class Oracle:
    """What each request must yield. Every one is decoded once, on demand."""

    def __init__(self, config: Config) -> None:
        self._local = LocalEngine.from_config(config)
        self._known: dict[tuple[int, str], Essence] = {}

    def __getitem__(self, request: tuple[int, str]) -> Essence:
        if request not in self._known:
            prompt, name = request
            self._known[request] = essence(self._local.generate(PROMPTS[prompt], SETTINGS[name]))
        return self._known[request]


@dataclass
class Trial:
    """Runs batches of random requests and compares every token."""

    engine: RayEngine
    oracle: Oracle
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    requests: int = 0
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """From one step's arrival to the next, while requests were in flight, as `time.time`."""

    def batch(self, number: int, during: Callable[[], object] | None = None, after: int = 5) -> None:
        """Decode that many random requests; `during` is called when `after` of their steps, or half, are done."""
        asked = [(self.draw.randrange(len(PROMPTS)), self.draw.choice(list(SETTINGS))) for _ in range(number)]
        after = min(after, sum(self.oracle[request][1] for request in asked) // 2)
        arrivals: list[float] = []

        def on_step(index: int, step: TraceStep) -> None:
            arrivals.append(time.time())
            if len(arrivals) == after and during is not None:
                during()

        sessions = [self.engine.create_session(PROMPTS[prompt], SETTINGS[name]) for prompt, name in asked]
        results = dict(self.engine.run(sessions, on_step=on_step))
        for index, request in enumerate(asked):
            result = results[index]
            assert isinstance(result, GenerationResult), result
            assert essence(result) == self.oracle[request]
        self.pauses += pairwise(arrivals)
        self.requests += number

    def until(self, reached: Callable[[], bool]) -> None:
        """Decode until that is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            assert time.monotonic() < deadline, self.engine.status()
            self.batch(3)

    def until_there_are(self, workers: int) -> None:
        """Wait until the group has that many workers, and no more are to come; decode with them, and see
        that all have the same in their caches. It may learn of a loss only as it decodes, and then waits again."""
        deadline = time.monotonic() + PATIENCE_S
        caches: list[list[SlotChecksum]] = []
        while len(caches) != workers:
            while (status := self.engine.status()).workers != workers or status.pending_workers:
                assert time.monotonic() < deadline, status
                time.sleep(0.1)
            self.batch(3)
            caches = self.engine.checksums()
        assert caches == [caches[0]] * workers

    def held_up(self, moment: float) -> float:
        """Seconds without a step around that moment, in which something happened; 0 if nothing was decoded."""
        return max((end - start for start, end in self.pauses if end > moment > start - 0.2), default=0.0)


@contextlib.contextmanager
def fated(folder: Path, oracle: Oracle, **group: object) -> Iterator[tuple[Trial, FaultInjection]]:
    """A group whose workers come by the fates in that folder."""
    fates = FaultInjection(folder)
    settings = config(group={"num_workers": WORKERS, **group})
    try:
        with RayEngine.from_config(settings, runner_factory=fates) as engine:
            yield Trial(engine, oracle), fates
    finally:
        for pid in fates.taken():
            end(pid, signal.SIGKILL)  # whoever hangs does not end by itself


def end(pid: int, kind: signal.Signals) -> None:
    """Send the signal, if the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, kind)


def actor_pids(kind: str) -> list[int]:
    """Processes of this Ray that run one of this project's actors."""
    pids = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{kind}"):
                pids.append(process.pid)
    return pids


def essence(result: GenerationResult) -> Essence:
    """What must not depend on what happened."""
    return result.token_ids, result.steps, result.forwards
