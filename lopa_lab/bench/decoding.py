"""Common parts of measurements that decode: random prompts, steps and results whose errors are raised, answers."""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from lopa_lab.requests import answered
from lopa_lab.word_problems import Problem, is_correct
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestEvent, RequestFailure, RequestStep
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepTiming
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.scheduling.scheduler import Scheduler


def random_prompt(draw: random.Random, vocabulary: Vocabulary, length: int) -> list[int]:
    """So many ids, none of which is the mask token."""
    choices = vocabulary.size - 1
    ids = (draw.randrange(choices) for _ in range(length))
    return [token + (token >= vocabulary.mask_token_id) for token in ids]


def not_failed(event: RequestEvent) -> RequestStep:
    """The event. Raises its error if a request has failed."""
    if isinstance(event, RequestFailure):
        raise event.error
    return event


def steps_of(engine: Engine, sessions: Sequence[DecodeSession]) -> Generator[RequestStep]:
    """Each step of each session. Raises the first error that ends a request."""
    for event in engine.events(sessions):
        yield not_failed(event)


def results_of(engine: Engine, sessions: Sequence[DecodeSession], **callbacks: Any) -> list[GenerationResult]:
    """The results of sessions, in their order. `callbacks`: see `Engine.run`. Raises the first error that ends a
    request."""
    results = dict(answered(engine.run(sessions, **callbacks)))
    return [results[index] for index in range(len(sessions))]


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A step of all requests in flight."""

    plan: StepPlan
    timing: StepTiming
    events: Sequence[RequestStep]
    """One per request in flight; `request_key` is the index of its session."""


def local_steps(engine: LocalEngine, sessions: Sequence[DecodeSession]) -> Generator[LocalStep]:
    """Decode sessions on the engine's runner, with the wall time of each step by phase.

    One step is over before the next is planned, whatever `group.overlap_schedule` says. Raises the first error that
    ends a request.
    """
    group = engine.config.group.replace(overlap_schedule=False)
    scheduler = Scheduler.from_config(engine.config.replace(group=group))
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
        steps = map(not_failed, events)
        yield LocalStep(
            plan, timing, [replace(s, request_key=index_of[s.request_key], timing=timing) for s in steps]
        )


def same_tokens_percent(ours: Sequence[GenerationResult], theirs: Sequence[GenerationResult]) -> float:
    """Share of positions with the same token in both, in percent; a position that one of them lacks differs."""
    pairs = [
        pair
        for one, other in zip(ours, theirs, strict=True)
        for pair in zip_longest(one.token_ids, other.token_ids)
    ]
    return 100 * sum(a == b for a, b in pairs) / len(pairs) if pairs else 100.0


def solved(problems: Sequence[Problem], results: Sequence[GenerationResult]) -> list[bool]:
    """Whether the answer to each problem is right."""
    return [is_correct(p, r.text or "") for p, r in zip(problems, results, strict=True)]
