"""Which requests run alone after failed steps, and which one is taken to be the cause."""

from __future__ import annotations

import pytest

from lopa_ray.scheduling.suspects import Suspects

pytestmark = pytest.mark.stand_in


def alone(suspects: Suspects, running: list[int]) -> list[int | None]:
    """Who runs alone, step after step, if every step succeeds; at last all run together."""
    order = []
    while (request_id := suspects.next_of(running)) is not None:
        order.append(request_id)
        suspects.clear([request_id])
    return order


def test_after_an_error_each_request_of_the_step_runs_alone_once():
    suspects = Suspects()
    assert suspects.record_error([3, 1, 2]) is None
    assert alone(suspects, [1, 2, 3]) == [1, 2, 3]
    assert suspects.next_of([1, 2, 3]) is None


def test_a_suspect_that_fails_alone_is_the_cause():
    suspects = Suspects()
    assert suspects.record_error([1]) is None  # it may have been chance
    assert suspects.record_error([1]) == 1


@pytest.mark.parametrize("planned", [[1], [1, 2, 3]])
def test_one_loss_of_workers_makes_no_suspect(planned: list[int]):
    suspects = Suspects()
    assert suspects.record_loss(planned) is None
    assert suspects.next_of(planned) is None


def test_a_request_that_loses_workers_twice_runs_alone_and_two_more_losses_end_it():
    suspects = Suspects()
    assert suspects.record_loss([1, 2]) is None
    suspects.clear([2])  # it has ended or made the step elsewhere
    assert suspects.record_loss([1, 2]) is None
    assert suspects.next_of([1, 2]) == 1
    assert suspects.record_loss([1]) is None  # it may have been chance
    assert suspects.next_of([1, 2]) == 1
    assert suspects.record_loss([1]) == 1
    assert suspects.next_of([2]) is None


def test_the_loss_of_a_group_makes_suspects_and_two_more_alone_end_one():
    suspects = Suspects()
    assert suspects.record_loss([1, 2], with_group=True) is None
    assert suspects.all_losses() == {1: 2, 2: 2}
    assert suspects.next_of([1, 2]) == 1
    assert suspects.record_loss([1], with_group=True) is None
    assert suspects.record_loss([1], with_group=True) == 1


def test_a_step_that_succeeds_clears_earlier_losses():
    suspects = Suspects()
    for _ in range(5):
        assert suspects.record_loss([1]) is None
        suspects.clear([1])
    assert suspects.losses(1) == 0


def test_losses_in_another_group_count():
    suspects = Suspects()
    suspects.add_losses(1, 1)
    suspects.add_losses(2, 2)
    assert alone(suspects, [1, 2]) == [2]
    suspects.add_losses(2, 3)
    assert suspects.record_loss([2]) == 2


def test_a_suspect_without_a_slot_keeps_no_other_from_running():
    suspects = Suspects()
    suspects.add_losses(7, 2)
    assert suspects.next_of([1, 2]) is None
    assert suspects.next_of([1, 7]) == 7
