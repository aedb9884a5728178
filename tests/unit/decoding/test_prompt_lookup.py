"""What followed the last tokens before, against a search through all positions."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from lopa_ray.decoding.guesses import Alternatives, with_found
from lopa_ray.decoding.prompt_lookup import LONGEST, RIGHT, SHORTEST, PromptLookup


def searched(ids: list[int], most: int) -> tuple[list[int], float]:
    for count in range(LONGEST, SHORTEST - 1, -1):
        for at in range(len(ids) - 1, count - 1, -1):
            if count <= len(ids) and ids[at - count : at] == ids[-count:]:
                return ids[at : at + most], RIGHT[count]
    return [], 0.0


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=12), st.integers(0, 4))
def test_finds_what_a_search_finds_however_the_answer_grows(parts: list[list[int]], most: int) -> None:
    lookup, ids = PromptLookup(), list[int]()
    for part in parts:
        ids += part
        tokens, probability = lookup.continuation(ids, most)
        assert (list(tokens), probability) == searched(ids, most)


DRAFTS: list[Alternatives] = [[(1, 0.6), (2, 0.2)], [(3, 0.7)]]


def test_a_probable_continuation_takes_the_place_of_the_drafts() -> None:
    drafts, found = with_found(DRAFTS, [2, 5, 6], 0.9)
    assert ([alternatives[0][0] for alternatives in drafts], found) == ([2, 5, 6], 3)
    assert drafts[0][0][1] == pytest.approx(1 - 0.1 * 0.8)
    assert drafts[0][1] == (1, pytest.approx(0.6 * 0.08))


def test_a_less_probable_one_is_an_alternative_for_the_first_draft() -> None:
    assert with_found(DRAFTS, [5, 6], 0.5) == ([[*DRAFTS[0], (5, 0.5)], DRAFTS[1]], 0)


def test_without_a_continuation_the_drafts_stay() -> None:
    assert with_found(DRAFTS, (), 0.0) == (DRAFTS, 0)
