"""Prompt lookup: the beam that a search of the tokens finds."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, strategies as st

from lopa_ray.decoding.branch_budget import CostBudget
from lopa_ray.decoding.draft_beams import (
    MAX_MATCH,
    REPEAT_PRIOR,
    beside_repeated,
    choose_beams,
    repeated_beam,
)


@given(ids=st.lists(st.integers(0, 3), max_size=30), most=st.integers(0, 5))
def test_a_repeated_beam_is_what_followed_the_last_two_tokens(ids: list[int], most: int) -> None:
    beam = repeated_beam(ids, most)
    places = [at for at in range(len(ids) - 2) if ids[at : at + 2] == ids[-2:]]
    if not places:
        assert beam == []
        return
    begin = places[-1] + 2
    assert [token for token, _ in beam] == (ids[begin:] * most)[:most]
    repeated = max(n for n in range(2, min(begin, MAX_MATCH) + 1) if ids[begin - n : begin] == ids[-n:])
    squares = [(repeated + at) ** 2 for at in range(len(beam))]
    right = [prod(n / (n + REPEAT_PRIOR) for n in squares[: at + 1]) for at in range(len(beam))]
    assert [probability for _, probability in beam] == pytest.approx(right)


@pytest.mark.parametrize(("of_head", "chosen"), [(0.9, (7, 8)), (0.2, (5, 6))])
def test_the_more_probable_of_a_heads_beam_and_a_repeated_one_comes_first(
    of_head: float, chosen: tuple[int, ...]
) -> None:
    repeated = repeated_beam([3, 4, 5, 6, 9, 3, 4], 2)
    beams = beside_repeated([[(7, of_head), (8, of_head)]], repeated)
    assert choose_beams(beams, CostBudget([1.0]))[0] == [chosen]
    assert sorted(choose_beams(beams, CostBudget([1.0, 1.0]))[0]) == [(5, 6), (7, 8)]


def test_beams_that_have_promised_too_much_get_fewer_guesses() -> None:
    beams, costs = [[(5, 0.6), (6, 0.3)], [(7, 0.3)], []], [1.0, 1.1]
    guesses = [(5, 6), (7,)]
    assert choose_beams(beams, CostBudget(costs, gain=1.0)) == (guesses, pytest.approx(0.9))
    assert choose_beams(beams, CostBudget(costs, gain=1.0), trust=0.2) == (guesses[:1], pytest.approx(0.9))
    assert choose_beams([], CostBudget(costs, gain=1.0)) == ([()], 0.0)


def test_a_repeated_beam_leaves_others_the_rest_of_the_probability() -> None:
    repeated = [(5, 0.4), (6, 0.2)]
    other, alike = [(7, 0.5), (8, 0.3)], [(5, 0.5), (8, 0.3)]
    beams = beside_repeated([other, alike, []], repeated)
    assert beams == [[(7, pytest.approx(0.3)), (8, pytest.approx(0.18))], alike, [], repeated]
    assert beside_repeated([other], []) == [other]
