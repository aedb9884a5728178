"""How many branches a request gets."""

from __future__ import annotations

from hypothesis import given, strategies as st

from lopa_ray.decoding.branch_budget import AutoBudget, branches_in_step
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.protocol.events import RequestStep
from lopa_ray.scheduling.scheduler import Scheduler
from support.fake_model import VOCABULARY, FakeModel

FIXED = LopaSettings(max_new_tokens=24, num_branches=5)
SHARING = FIXED.replace(branch_budget="load", max_branches=6)
COUNTS = st.integers(1, 64)


@given(COUNTS, COUNTS, COUNTS)
def test_fixed_is_what_was_asked_for(shared, wanted, in_flight):
    settings = FIXED.replace(num_branches=wanted, max_branches=shared)
    assert branches_in_step(settings, in_flight) == wanted


@given(COUNTS, COUNTS, COUNTS)
def test_load_shares_and_never_exceeds_what_was_asked_for(shared, wanted, in_flight):
    settings = SHARING.replace(num_branches=wanted, max_branches=shared)
    got = branches_in_step(settings, in_flight)
    assert 1 <= got <= wanted
    assert got * in_flight <= max(shared, in_flight)
    assert branches_in_step(settings, in_flight + 1) <= got


def test_decoders_without_lookahead_have_one_branch():
    for settings in (D2FSettings(), FastDllmSettings()):
        assert branches_in_step(settings, 1) == 1


def branches_per_step(settings: list[LopaSettings]) -> dict[int, list[int]]:
    scheduler = Scheduler(8)
    model = FakeModel(seed=2, probability_exponent=2.0)
    requests = [scheduler.submit(new_session((1 + i,), own, VOCABULARY)) for i, own in enumerate(settings)]
    seen: dict[int, list[int]] = {request: [] for request in requests}
    while scheduler.busy:
        plans = scheduler.plan(2)
        events = scheduler.advance([model.execute(plan) for plan in plans])
        for event in events:
            assert isinstance(event, RequestStep)
            seen[event.request_key].append(len(event.plan.branches))
    return seen


def test_the_scheduler_asks_the_budget_at_every_step():
    alone = branches_per_step([SHARING])
    assert max(alone[1]) == 5
    together = branches_per_step([SHARING, SHARING, FIXED])
    assert max(together[3]) == 5, "a fixed request keeps its branches"
    assert together[1][1] == together[2][1] == 2, "two sharing requests beside it get a third of six each"


def test_a_fixed_request_decodes_alike_beside_any_others():
    alone = branches_per_step([FIXED])[1]
    assert branches_per_step([FIXED, SHARING, SHARING])[1] == alone


# auto


def test_auto_adds_branches_when_the_second_half_wins_and_takes_one_away_otherwise():
    budget = AutoBudget(16)
    assert budget.num_branches == 4
    budget.observe([0.3, 0.4, 0.9, 0.2])  # the last fork
    assert budget.num_branches == 6
    budget.observe([0.9, 0.3, 0.4, 0.3, 0.3, 0.2])  # the first
    assert budget.num_branches == 5
    budget.observe([0.3, 0.3, 0.304, 0.3, 0.3])  # a later one, by too little
    assert budget.num_branches == 4
    budget.observe([0.5])  # the anchor alone
    assert budget.num_branches == 4
    for _ in range(9):
        budget.observe([0.3, 0.3, 0.3, 0.9])
    assert budget.num_branches == 2
    budget.observe([0.9, 0.1])  # the only fork wins
    assert budget.num_branches == 3


@given(st.integers(1, 9), st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=9), max_size=20))
def test_auto_stays_within_bounds(most, steps):
    budget = AutoBudget(most)
    for confidences in steps:
        budget.observe(confidences)
        assert min(2, most) <= budget.num_branches <= most


def test_an_auto_request_decodes_alike_beside_any_others():
    auto = FIXED.replace(num_branches="auto", max_branches=12)
    alone = branches_per_step([auto])[1]
    assert branches_per_step([auto, SHARING, FIXED])[1] == alone
    assert len(set(alone)) > 1
    assert max(alone) <= 12


def test_an_auto_request_shares_too_where_it_is_told_to():
    auto = FIXED.replace(num_branches="auto", max_branches=12)
    pinned, sharing = (
        branches_per_step([first, SHARING])[1]
        for first in (auto, auto.replace(branch_budget="load", max_branches=6))
    )
    assert max(pinned) > 3 >= max(sharing[1:-1])
