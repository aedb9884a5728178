"""Clients share a group: however much one of them sends, another one gets slots, and its part of each step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.scheduling.fair_queue import FairQueue, first_in_line
from lopa_ray.scheduling.scheduler import Scheduler
from lopa_ray.scheduling.step_cost import StepCost
from support.fake_model import VOCABULARY, FakeModel
from support.in_process_group import InProcessGroup
from support.tiny_model import PROMPTS, SETTINGS, load_tiny_model

pytestmark = pytest.mark.medium

MODEL = FakeModel(seed=1)
LIGHT = LopaSettings(max_new_tokens=24, block_size=8, num_branches=3)
LARGE = LIGHT.replace(max_new_tokens=64, block_size=32, num_branches=8)


def session(
    client: str, settings: GenerationSettings = LIGHT, prompt: Sequence[int] = (1, 2), priority: int = 0
) -> DecodeSession:
    made = new_session(prompt, settings, VOCABULARY)
    made.client, made.priority = client, priority
    return made


def joined(scheduler: Scheduler) -> list[int]:
    """Ids of all requests in the order in which they get slots."""
    order: dict[int, None] = {}
    while scheduler.busy:
        plans = scheduler.plan(1)
        order |= dict.fromkeys(scheduler.request_by_slot.values())
        scheduler.advance([MODEL.execute(plan) for plan in plans])
    return [*order]


def step_rows(scheduler: Scheduler) -> tuple[int, list[int]]:
    """Run a step; returns its rows, and the requests that ended."""
    plans = scheduler.plan(1)
    rows = sum(scheduled.plan.num_rows for scheduled in plans[0].requests)
    events = scheduler.advance([MODEL.execute(plan) for plan in plans])
    return rows, [event.request_key for event in events if ended(event)]


def ended(event: RequestEvent) -> bool:
    return isinstance(event, RequestFailure) or event.outcome.finish_reason is not None


@pytest.mark.parametrize("heavy", [LIGHT, LARGE])
def test_a_light_client_decodes_half_as_fast_as_alone(heavy: GenerationSettings) -> None:
    """Where a step takes as long as it has rows. Each request is sent when the one before has ended."""

    def times(scheduler: Scheduler) -> list[int]:
        seconds = []
        for prompt in ((3, 4), (5,), (6, 7, 8), (9, 1), (2, 2, 2)):
            request, finished, took = scheduler.submit(session("light", prompt=prompt)), [], 0
            while request not in finished:
                rows, finished = step_rows(scheduler)
                took += rows
            seconds.append(took)
        return seconds

    alone, beside = Scheduler(8), Scheduler(8)
    for number in range(200):
        beside.submit(session("heavy", heavy, prompt=(1, 2 + number % 40)))
    longest = max(step_rows(beside)[0] for _ in range(10))
    for slow, fast in zip(times(beside), times(alone), strict=True):
        assert slow <= 2 * fast + longest / 8
    assert beside.waiting >= 150


def test_slots_go_to_the_client_with_the_fewest_and_then_by_priority() -> None:
    scheduler = Scheduler(3)
    first, second, third = (scheduler.submit(session("a")) for _ in range(3))
    late, urgent, same = (scheduler.submit(session("b", priority=priority)) for priority in (5, -1, -1))
    order = joined(scheduler)
    assert order[:3] == [first, urgent, second]
    assert [request for request in order if request in (late, urgent, same)] == [urgent, same, late]
    assert third in order

    sessions = {number: session(client) for number, client in enumerate("aaaabba")}
    assert first_in_line(sessions, 4) == [0, 4, 1, 5]
    assert first_in_line(sessions, 99)[4:] == [2, 3, 6]


@pytest.mark.parametrize("name", ["two_phase", "single_phase", "prefix_cache", "joint_speculation"])
def test_who_gives_a_slot_away_keeps_every_token(name: str) -> None:
    model, workers = load_tiny_model(), 2

    def decode(others: int) -> list[tuple[int, ...]]:
        """The canvases of two requests; others take a slot one after the other."""
        wanted = others
        group = InProcessGroup(model, workers, max_num_seqs=2)
        scheduler = group.scheduler
        own = [scheduler.submit(group.create_session(prompt, SETTINGS[name])) for prompt in PROMPTS[:2]]
        canvases: dict[int, tuple[int, ...]] = {}
        other: int | None = None
        steps = 0
        while scheduler.busy:
            steps += 1
            if steps % 4 == 0 and others and other is None and scheduler.in_flight == 2:
                session = group.create_session(PROMPTS[4], LIGHT.replace(max_new_tokens=8))
                session.client = "other"
                other, others = scheduler.submit(session), others - 1
                assert scheduler.plan(workers) and scheduler.waiting == 1
                if others % 2:  # gone before its first step, and the slot is as it was left
                    scheduler.cancel(other)
            for event in group.step():
                if event.request_key == other:
                    other = None if ended(event) else other
                elif ended(event):
                    canvases[event.request_key] = event.outcome.canvas
        assert others < wanted or not wanted
        group.agreed_checksums()
        return [canvases[request] for request in own]

    assert decode(others=8) == decode(others=0)


def test_rows_that_cost_little_are_free() -> None:
    cost = StepCost()
    assert cost.free_rows == 0
    for rows in (100, 100, 200, 400, 100, 300):
        cost.record(rows, 0.010 + rows * 0.0001)
    assert cost.free_rows == pytest.approx(100)

    queue = FairQueue()
    for number, client in enumerate("aaab"):
        queue.add(number, session(client))
        queue.pop()
    rows = dict.fromkeys(range(4), 100)
    assert [queue.select(rows, free_rows, {}) for free_rows in (0, 100, 200)] == [
        [0, 3],
        [0, 3, 1],
        [0, 3, 1, 2],
    ]
    queue.serve(0, 100)
    assert queue.select(rows, 0, {}) == [3, 0]
