"""Blocks and the canvas: growth, completion, caching, copies."""

from __future__ import annotations

import pytest

from lopa_ray.decoding.canvas import BlockState, Canvas

MASK = 9


def canvas(blocks: list[list[int]], prompt: int = 2) -> Canvas:
    """A canvas with a prompt of ones and the given blocks."""
    made = Canvas([1] * prompt, MASK)
    for ids in blocks:
        start = len(made)
        made.append_block(len(ids))
        for offset, token in enumerate(ids):
            if token != MASK:
                made.fill(start + offset, token)
    return made


def states(made: Canvas) -> str:
    return "".join({"active": "a", "to_cache": "t", "in_cache": "c"}[b.state.value] for b in made.blocks)


def test_the_prompt_is_a_block_that_waits_to_be_cached():
    made = Canvas([1, 2, 3], MASK)
    assert (states(made), made.cacheable_end, made.masks, made.generated) == ("t", 3, 0, [])
    made.mark_cached()
    assert states(made) == "c"


def test_a_decided_position_is_never_filled_again():
    made = canvas([[MASK, 5]])
    made.fill(2, 4)
    assert made.generated == [4, 5]
    for position in (0, 2, 3):
        with pytest.raises(ValueError, match=f"position {position} already"):
            made.fill(position, 6)
    assert made.ids == [1, 1, 4, 5]
    assert made.masks == 0


def test_masks_are_counted_per_block():
    made = canvas([[MASK, 5, MASK], [MASK, MASK]])
    assert [block.masks for block in made.blocks] == [0, 2, 2]
    assert [made.masked_positions(block) for block in made.blocks] == [[], [2, 4], [5, 6]]
    assert made.blocks[1].decided_fraction == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("decided", "threshold", "grows"), [(0, 0.0, True), (0, 0.1, False), (1, 0.25, True), (1, 0.26, False)]
)
def test_growth_needs_the_last_block_decided_to_the_threshold(decided, threshold, grows):
    made = canvas([[3] * decided + [MASK] * (4 - decided)])
    made.grow(threshold, 4, limit=100)
    assert len(made.blocks) == (3 if grows else 2)


def test_growth_stops_exactly_at_the_limit():
    made = canvas([])
    for expected in (6, 10, 11, 11):
        made.grow(0.0, 4, limit=11)
        assert len(made) == expected
    assert [block.stop - block.start for block in made.blocks] == [2, 4, 4, 1]


def test_completeness_is_sticky_and_follows_the_block_before():
    made = canvas([[3, MASK], [MASK, MASK], [MASK, MASK]])
    made.mark_complete(0.6)
    assert [block.complete for block in made.blocks] == [True, True, False, False]
    made.mark_complete(0.5)
    assert [block.complete for block in made.blocks] == [True, True, True, False]
    made.mark_complete(1.0)
    assert [block.complete for block in made.blocks] == [True, True, True, False]


def test_a_block_settles_only_behind_settled_ones():
    made = canvas([[3, MASK], [4, 4], [5, 5]])
    made.mark_to_cache()
    assert (states(made), made.cacheable_end) == ("taaa", 2)
    made.mark_cached()
    made.fill(3, 3)
    assert states(made) == "caaa"
    made.mark_to_cache()
    assert (states(made), made.cacheable_end) == ("cttt", 8)
    made.mark_cached()
    assert states(made) == "cccc"
    made.append_block(2)
    assert (states(made), made.cacheable_end) == ("cccca", 8)


def test_a_fork_is_independent():
    made = canvas([[MASK, MASK]])
    copied = made.with_fills(((3, 7),))
    copied.fill(2, 6)
    copied.mark_to_cache()
    copied.append_block(2)
    assert (made.generated, made.masks, states(made)) == ([MASK, MASK], 2, "ta")
    assert (copied.generated, states(copied)) == ([6, 7, MASK, MASK], "tta")
    assert (copied.prompt_len, copied.mask_id) == (2, MASK)


def test_views_are_frozen_copies():
    made = canvas([[MASK, 3]])
    view = made.block_views()[1]
    made.fill(2, 3)
    made.mark_to_cache()
    assert (view.start, view.stop, view.state, view.masks, view.complete) == (2, 4, "active", 1, False)
    assert made.blocks[1].state is BlockState.TO_CACHE
