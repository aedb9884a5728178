"""Two steps in flight, each of half of the requests: who is in which half, in which order, and the same tokens."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import ProtocolError
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.scheduler import Scheduler
from lopa_ray.scheduling.step_limit import StepLimit
from support.fake_model import VOCABULARY, FakeModel

pytestmark = pytest.mark.stand_in

MODEL = FakeModel(seed=3)
SETTINGS = LopaSettings(max_new_tokens=24, block_size=4, num_branches=3, stop_at_eos=False)
WIDE = LopaSettings(max_new_tokens=24, block_size=24, num_branches=12, stop_at_eos=False)


def session(number: int = 0, settings: GenerationSettings = SETTINGS, client: str = "") -> DecodeSession:
    begun = new_session((1, 2 + number), settings, VOCABULARY)
    begun.client = client
    return begun


class Loop:
    """A scheduler, and workers that finish a step when the test says so."""

    def __init__(self, scheduler: Scheduler, workers: int = 1) -> None:
        self.scheduler = scheduler
        self.workers = workers
        self.in_flight: deque[list[StepPlan]] = deque()

    @property
    def halves(self) -> list[list[int]]:
        """The requests of each step in flight, the oldest first."""
        return [[scheduled.request_id for scheduled in plans[0].requests] for plans in self.in_flight]

    def send(self) -> list[list[int]]:
        """Send what may be sent; returns `halves`."""
        if not self.in_flight and (plans := self.scheduler.plan(self.workers)):
            self.in_flight.append(plans)
        if self.in_flight and (plans := self.scheduler.plan_overlapped(self.workers)):
            self.in_flight.append(plans)
        return self.halves

    def finish(self) -> list[RequestEvent]:
        """The oldest step is done."""
        plans = self.in_flight.popleft() if self.in_flight else []
        return self.scheduler.advance([MODEL.execute(plan) for plan in plans])

    def fail(self) -> None:
        """A worker was lost: a new epoch begins."""
        self.in_flight.clear()
        self.scheduler.enter_epoch(self.scheduler.epoch + 1, {})

    def run(self) -> list[RequestEvent]:
        """Decode to the end."""
        events = []
        while self.scheduler.busy:
            self.send()
            events += self.finish()
        return events


def loop_of(requests: int, slots: int = 8, limit: StepLimit | None = None) -> Loop:
    """A loop with overlap, whose requests are 1, 2, ..."""
    loop = Loop(Scheduler(slots, limit=limit, overlap=True))
    for number in range(requests):
        loop.scheduler.submit(session(number))
    return loop


def test_one_half_is_planned_while_the_other_is_in_flight() -> None:
    loop = loop_of(4)
    assert loop.send() == [[1, 2], [3, 4]]
    assert loop.send() == [[1, 2], [3, 4]]  # two steps, and no third
    for _ in range(2):
        loop.finish()
        assert loop.send() == [[3, 4], [1, 2]]
        loop.finish()
        assert loop.send() == [[1, 2], [3, 4]]
    assert [plans[0].step for plans in loop.in_flight] == [5, 6]


def test_halves_are_of_all_requests_and_all_make_as_many_steps() -> None:
    loop, sessions = Loop(Scheduler(8, overlap=True)), [session(number) for number in range(5)]
    for begun in sessions:
        loop.scheduler.submit(begun)
    assert loop.send() == [[1, 2, 3], [4, 5]]
    for _ in range(6):
        loop.finish()
        loop.send()
        steps = [begun.steps for begun in sessions]
        assert max(steps) - min(steps) <= 1
        assert sorted(map(len, loop.halves)) == [2, 3]


def test_a_new_request_joins_and_the_halves_stay_even() -> None:
    loop = loop_of(3)
    assert loop.send() == [[1, 2], [3]]
    fourth = loop.scheduler.submit(session(9))
    loop.finish()
    assert fourth in loop.send()[1]  # at once, with the half that is planned next
    for _ in range(4):
        loop.finish()
        assert [len(half) for half in loop.send()] == [2, 2]


def test_a_half_that_empties_is_filled_from_the_other() -> None:
    loop = loop_of(4)
    loop.send()
    for request in (3, 4):
        loop.scheduler.cancel(request)
    loop.finish()
    loop.send()
    loop.finish()
    for _ in range(4):
        assert sorted(loop.send()) == [[1], [2]]
        loop.finish()


def test_reports_are_taken_in_the_order_of_the_plans() -> None:
    loop = loop_of(2)
    loop.send()
    first, second = ([MODEL.execute(plan) for plan in plans] for plans in loop.in_flight)
    with pytest.raises(ProtocolError, match="step 2; this is epoch 0, step 1"):
        loop.scheduler.advance(second)
    assert [event.request_key for event in loop.scheduler.advance(first)] == [1]
    assert [event.request_key for event in loop.scheduler.advance(second)] == [2]


def test_a_slot_that_is_freed_in_flight_is_for_the_next_step() -> None:
    loop = loop_of(3, slots=2)
    assert loop.send() == [[1], [2]]
    loop.scheduler.cancel(1)
    [failure] = [event for event in loop.finish() if isinstance(event, RequestFailure)]
    assert failure.request_key == 1  # and what it has decided in this step is dropped
    assert loop.send() == [[2], [3]]
    assert [request.slot for request in loop.in_flight[1][0].requests] == [0]
    assert {event.request_key for event in loop.run()} == {2, 3}


def test_a_request_in_flight_keeps_its_slot_while_another_gives_its_own_away() -> None:
    loop = Loop(Scheduler(2, overlap=True))
    for number in range(2):
        loop.scheduler.submit(session(number, client="one"))
    assert loop.send() == [[1], [2]]
    loop.scheduler.submit(session(2, client="other"))
    loop.finish()
    assert loop.send() == [[2], [3]]
    assert [*loop.scheduler.request_by_slot.values()] == [2, 3]  # 2 has made fewer steps, and is in flight
    assert {event.request_key for event in loop.run()} == {1, 2, 3}


def test_prefixes_that_a_step_in_flight_uses_may_be_evicted_behind_it() -> None:
    index = PrefixIndex(6)
    loop = Loop(Scheduler(3, prefix_index=index, overlap=True))
    causal = SETTINGS.replace(window_attention="tiled")
    prompts = ([1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4])

    def submit(number: int) -> None:
        loop.scheduler.submit(new_session(prompts[number], causal, VOCABULARY))

    submit(0)
    while not index.match(index.hash_prefixes(new_session(prompts[2], causal, VOCABULARY).plan())):
        loop.send()
        loop.finish()
    loop.scheduler.cancel(1)
    while loop.in_flight:
        loop.finish()
    submit(1)
    submit(2)
    assert loop.send() == [[2], [3]]
    assert loop.in_flight[1][0].requests[0].stored_prefix
    loop.finish()  # the prompt of 2 takes the place of what 3 begins with
    assert index.pending_evictions
    loop.finish()
    assert index.hit_requests == 1
    assert {event.request_key for event in loop.run()} == {2, 3}


def test_an_answer_waits_for_the_prompt_that_a_step_in_flight_computes() -> None:
    loop = Loop(Scheduler(4, prefix_index=PrefixIndex(50), overlap=True))
    for prompt in ([1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]):
        loop.scheduler.submit(new_session(prompt, SETTINGS.replace(window_attention="tiled"), VOCABULARY))
    assert loop.send() == [[1], [2]]
    sent = []
    while not (sent and sent[-1] == 3):
        assert all(event.request_key != 3 for event in loop.finish())
        loop.send()
        sent += loop.halves[-1]
    assert loop.in_flight[-1][0].requests[-1].stored_prefix
    assert {event.request_key for event in loop.run()} == {1, 2, 3}


def test_a_request_that_is_cancelled_and_whose_half_is_in_flight_leaves_the_other_as_it_is() -> None:
    loop = loop_of(2)
    loop.send()
    loop.scheduler.cancel(1)
    loop.scheduler.cancel(2)
    assert loop.scheduler.busy
    assert {event.request_key for event in [*loop.finish(), *loop.finish()]} == {1, 2}
    assert not loop.scheduler.busy


def test_a_failure_gives_up_both_steps_and_each_of_their_requests_runs_alone() -> None:
    loop = loop_of(4)
    loop.send()
    assert set(loop.scheduler.planned_ids) == {1, 2, 3, 4}
    assert loop.scheduler.poison.record_error(loop.scheduler.planned_ids) is None
    loop.fail()
    for request in (1, 2, 3, 4):  # each one alone, and nothing beside it
        assert loop.send() == [[request]]
        loop.finish()
    assert [len(half) for half in loop.send()] == [2, 2]


def test_a_poison_request_from_another_group_waits_for_what_is_in_flight_and_runs_alone() -> None:
    loop = loop_of(2)
    loop.send()
    third = loop.scheduler.submit(session(5))
    loop.scheduler.poison.add_losses(third, 2)
    loop.finish()
    assert loop.send() == [[2]]
    loop.finish()
    assert loop.send() == [[third]]
    loop.finish()
    assert [len(half) for half in loop.send()] == [2, 1]


def test_the_bound_on_rows_holds_and_a_step_in_parts_has_none_beside_it() -> None:
    loop = loop_of(2, limit=StepLimit(60))
    loop.scheduler.submit(session(7, WIDE))
    parts = 0
    while loop.scheduler.busy:
        loop.send()
        for plans in loop.in_flight:
            rows = [
                sum(request.plan.rows_of(request.branch_indices) for request in plan.requests)
                for plan in plans
            ]
            assert max(rows) <= 60
        oldest = loop.in_flight[0][0].requests
        if any(0 < len(request.branch_indices) < len(request.plan.branches) for request in oldest):
            parts += 1
            assert len(loop.in_flight) == 1
        loop.finish()
    assert parts > 2


def test_auto_halves_steps_whose_rows_count_for_more_than_what_each_step_takes_anyway() -> None:
    """A device whose forward takes 1 ms, and 0.1 ms per row: 10 rows take as long as the fixed part."""
    loop = Loop(Scheduler(16, overlap="auto"))

    def finish() -> int:
        [plan] = loop.in_flight.popleft()
        rows = sum(request.plan.num_rows for request in plan.requests)
        loop.scheduler.advance([replace(MODEL.execute(plan), forward_s=1e-3 + 1e-4 * rows)])
        return rows

    for number in range(2):
        loop.scheduler.submit(session(number, SETTINGS.replace(num_branches=1, max_new_tokens=60)))
    for _ in range(8):  # steps of several sizes, from which it learns
        loop.send()
        finish()
    assert loop.send() in ([[1, 2]], [[2, 1]])  # two requests with a branch each have less than 40 rows
    for number in range(2, 10):
        loop.scheduler.submit(session(number))
    finish()
    assert [len(half) for half in loop.send()] == [5, 5]
    for request in range(3, 11):
        loop.scheduler.cancel(request)
    for _ in range(3):  # the halves drain, and are one again
        finish()
        loop.send()
    assert [sorted(half) for half in loop.halves] == [[1, 2]]


def test_a_client_with_few_requests_does_not_wait_for_another_ones_half() -> None:
    loop = Loop(Scheduler(8, overlap=True))
    light = loop.scheduler.submit(session(0, client="light"))
    heavy = [loop.scheduler.submit(session(1 + number, client="heavy")) for number in range(7)]
    rows = dict.fromkeys((True, False), 0)
    largest = 0
    while light in loop.scheduler.unfinished_ids:
        loop.send()
        [plan] = loop.in_flight[0]
        for request in plan.requests:
            rows[request.request_id == light] += request.plan.num_rows
        largest = max(largest, sum(request.plan.num_rows for request in plan.requests))
        loop.finish()
    assert set(heavy) & set(loop.scheduler.unfinished_ids)
    assert abs(rows[True] - rows[False]) <= largest
