"""Which requests run alone after failed steps, and which one is taken to be the cause."""

from __future__ import annotations

import pytest

from lopa_ray.scheduling.poison_requests import PoisonRequests

pytestmark = pytest.mark.stand_in


def alone(poison: PoisonRequests, running: list[int]) -> list[int | None]:
    """Who runs alone, step after step, if every step succeeds; at last all run together."""
    order = []
    while (request_id := poison.next_of(running)) is not None:
        order.append(request_id)
        poison.clear([request_id])
    return order


def test_after_an_error_each_request_of_the_step_runs_alone_once():
    poison = PoisonRequests()
    assert poison.record_error([3, 1, 2]) is None
    assert alone(poison, [1, 2, 3]) == [1, 2, 3]
    assert poison.next_of([1, 2, 3]) is None


def test_a_request_that_fails_alone_is_the_cause():
    poison = PoisonRequests()
    assert poison.record_error([1]) is None  # it may have been chance
    assert poison.record_error([1]) == 1


@pytest.mark.parametrize("planned", [[1], [1, 2, 3]])
def test_one_loss_of_workers_runs_no_request_alone(planned: list[int]):
    poison = PoisonRequests()
    assert poison.record_loss(planned) is None
    assert poison.next_of(planned) is None


def test_a_request_that_loses_workers_twice_runs_alone_and_two_more_losses_end_it():
    poison = PoisonRequests()
    assert poison.record_loss([1, 2]) is None
    poison.clear([2])  # it has ended or made the step elsewhere
    assert poison.record_loss([1, 2]) is None
    assert poison.next_of([1, 2]) == 1
    assert poison.record_loss([1]) is None  # it may have been chance
    assert poison.next_of([1, 2]) == 1
    assert poison.record_loss([1]) == 1
    assert poison.next_of([2]) is None


def test_the_loss_of_a_group_runs_requests_alone_and_two_more_alone_end_one():
    poison = PoisonRequests()
    assert poison.record_loss([1, 2], with_group=True) is None
    assert poison.losses == {1: 2, 2: 2}
    assert poison.next_of([1, 2]) == 1
    assert poison.record_loss([1], with_group=True) is None
    assert poison.record_loss([1], with_group=True) == 1


def test_a_step_that_succeeds_clears_earlier_losses():
    poison = PoisonRequests()
    for _ in range(5):
        assert poison.record_loss([1]) is None
        poison.clear([1])
    assert poison.losses[1] == 0


def test_losses_in_another_group_count():
    poison = PoisonRequests()
    poison.add_losses(1, 1)
    poison.add_losses(2, 2)
    assert alone(poison, [1, 2]) == [2]
    poison.add_losses(2, 3)
    assert poison.record_loss([2]) == 2


def test_one_without_a_slot_keeps_no_other_from_running():
    poison = PoisonRequests()
    poison.add_losses(7, 2)
    assert poison.next_of([1, 2]) is None
    assert poison.next_of([1, 7]) == 7
