"""What followed the last tokens before, against a search through all positions."""

from __future__ import annotations

from hypothesis import given, strategies as st

from lopa_ray.decoding.prompt_lookup import CONTINUED, LONGEST, RIGHT, SHORTEST, PromptLookup


def searched(ids: list[int], most: int) -> list[tuple[int, float]]:
    for count in range(LONGEST, SHORTEST - 1, -1):
        for at in range(len(ids) - 1, count - 1, -1):
            if count <= len(ids) and ids[at - count : at] == ids[-count:]:
                shares = [RIGHT[count], *[CONTINUED] * most]
                return [*zip(ids[at : at + most], shares, strict=False)]
    return []


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=12), st.integers(0, 4))
def test_finds_what_a_search_finds_however_the_answer_grows(parts: list[list[int]], most: int) -> None:
    lookup, ids = PromptLookup(), list[int]()
    for part in parts:
        ids += part
        assert lookup.continuation(ids, most) == searched(ids, most)
