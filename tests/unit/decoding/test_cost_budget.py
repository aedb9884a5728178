"""How many branches are worth their cost."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from lopa_ray.decoding.branch_budget import CostBudget
from lopa_ray.protocol.forward_costs import ForwardCosts, StepLoad

TABLES = st.dictionaries(st.integers(1, 500), st.floats(0.01, 100.0), min_size=1, max_size=6)
GAINS = st.lists(st.floats(0.01, 1.0), max_size=12).map(lambda gains: [1.0, *sorted(gains, reverse=True)])
COSTS = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8).map(sorted)


def taken(costs: list[float], gains: list[float], rate: float | None = None) -> int:
    """As a search does it: branches in order of their gains, as long as the budget wants more."""
    budget = CostBudget(costs, rate=rate)
    for gain in gains:
        if not budget.wants(gain):
            break
        budget.take(gain)
    return budget.num_branches


@given(COSTS, GAINS)
def test_the_number_with_the_highest_gain_per_time_is_taken(costs: list[float], gains: list[float]) -> None:
    most = min(len(costs), len(gains))
    rates = [sum(gains[:number]) / costs[number - 1] for number in range(1, most + 1)]
    number = taken(costs, gains)
    assert 1 <= number <= most
    assert rates[number - 1] == pytest.approx(max(rates))


@given(COSTS, GAINS, st.floats(0.01, 10.0))
def test_with_a_rate_the_time_of_a_step_is_worth_what_it_gains_elsewhere(
    costs: list[float], gains: list[float], rate: float
) -> None:
    most = min(len(costs), len(gains))
    worth = [sum(gains[:number]) - rate * costs[number - 1] for number in range(1, most + 1)]
    number = taken(costs, gains, rate)
    assert 1 <= number <= most
    assert worth[number - 1] == pytest.approx(max(worth))


@given(GAINS, st.integers(1, 8))
def test_free_branches_are_all_taken_and_endlessly_dear_ones_never(gains: list[float], most: int) -> None:
    assert taken([1.0] * most, gains) == min(most, len(gains))
    assert taken([1.0, *[float("inf")] * (most - 1)], gains) == 1


@given(GAINS, st.lists(st.floats(0.0, 2.0), min_size=2, max_size=2).map(sorted))
def test_no_more_branches_are_taken_if_each_costs_more(gains: list[float], prices: list[float]) -> None:
    cheap, dear = (taken([1 + price * more for more in range(8)], gains) for price in prices)
    assert dear <= cheap


def test_a_dear_branch_is_taken_for_a_free_one_behind_it() -> None:
    assert taken([1.0, 1.4], [1.0, 0.3, 0.3]) == 1
    assert taken([1.0, 1.4, 1.4], [1.0, 0.3, 0.3]) == 3


@given(TABLES, st.integers(1, 1000), st.integers(1, 1000))
def test_more_rows_never_cost_less(table: dict[int, float], rows: int, others: int) -> None:
    costs = ForwardCosts.of(table)
    assert costs.at(min(rows, others)) <= costs.at(max(rows, others)) + 1e-9
    assert costs.at(min(table)) == table[min(table)]


def test_between_and_beyond_what_was_measured_costs_lie_on_lines() -> None:
    costs = ForwardCosts.of({16: 6.0, 8: 4.0, 32: 5.0, 64: 8.0})
    assert [costs.at(rows) for rows in (1, 8, 12, 16, 32, 48, 64, 96)] == [4, 4, 5, 6, 6, 7, 8, 10]


def test_a_step_costs_what_the_worker_with_the_most_branches_takes() -> None:
    costs = ForwardCosts.of({1: 1.0, 101: 101.0})
    assert [StepLoad(costs).cost(branches, 10) for branches in (1, 2, 3)] == [10, 20, 30]
    assert [StepLoad(costs, workers=2).cost(branches, 10) for branches in (1, 2, 3)] == [10, 10, 20]
    assert [StepLoad(costs, 3, 2).cost(branches, 10) for branches in (1, 2, 3)] == [20, 30, 50]
