"""Steps of requests in this process, each with its time by phase."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestFailure, RequestStep
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.report import StepTiming
from lopa_ray.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A step of all requests in flight."""

    plan: StepPlan
    timing: StepTiming
    events: Sequence[RequestStep]
    """One per request in flight; `request_id` is the index of its session."""


def local_steps(engine: LocalEngine, sessions: Sequence[DecodeSession]) -> Generator[LocalStep]:
    """Decode sessions on the engine's runner. Raises the first error that ends a request."""
    scheduler = Scheduler.from_config(engine.config)
    engine.runner.reconcile({}, ())  # a scheduler before this one gave its requests the same ids
    index_of = {scheduler.submit(session): index for index, session in enumerate(sessions)}
    while scheduler.busy:
        began = time.perf_counter()
        (plan,) = scheduler.plan(num_workers=1)
        planned = time.perf_counter()
        report = engine.runner.execute(plan)
        executed = time.perf_counter()
        events = scheduler.advance([report])
        timing = StepTiming(
            plan=planned - began,
            scatter=0.0,
            commit=report.commit_s,
            forward=report.forward_s,
            gather=0.0,
            select=time.perf_counter() - executed,
        )
        found = []
        for event in events:
            if isinstance(event, RequestFailure):
                raise event.error
            found.append(replace(event, request_id=index_of[event.request_id], timing=timing))
        yield LocalStep(plan, timing, found)
