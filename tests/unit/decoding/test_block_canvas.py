"""Blocks and the canvas: growth, completion, caching, copies."""

from __future__ import annotations

import pytest

from lopa_ray.decoding.block_canvas import BlockCanvas, BlockState

MASK = 9


def canvas(blocks: list[list[int]], prompt: int = 2) -> BlockCanvas:
    """A canvas with a prompt of ones and the given blocks."""
    filled = BlockCanvas([1] * prompt, MASK)
    for ids in blocks:
        start = len(filled)
        filled.grow(len(ids), 1000)
        for offset, token in enumerate(ids):
            if token != MASK:
                filled.set_tokens([(start + offset, token)])
    return filled


def states(filled: BlockCanvas) -> str:
    return "".join({"active": "a", "to_cache": "t", "in_cache": "c"}[b.state.value] for b in filled.blocks)


def test_the_prompt_is_a_block_that_waits_to_be_cached():
    filled = BlockCanvas([1, 2, 3], MASK)
    assert (states(filled), filled.cacheable_end, filled.masks, filled.generated) == ("t", 3, 0, [])
    filled.mark_cached()
    assert states(filled) == "c"


def test_masks_are_counted_per_block():
    filled = canvas([[MASK, 5, MASK], [MASK, MASK]])
    assert [block.masks for block in filled.blocks] == [0, 2, 2]
    assert [filled.masked_positions(block.span) for block in filled.blocks] == [[], [2, 4], [5, 6]]
    assert filled.blocks[1].decided_fraction == pytest.approx(1 / 3)


def test_an_edit_leaves_masks_as_they_are_and_its_block_waits_where_it_may_be_edited_again():
    edited = canvas([[3, 4], [5, MASK]])
    edited.set_tokens([(2, 7)])
    assert edited.generated == [7, 4, 5, MASK]
    assert edited.masks == 1
    edited.mark_to_cache({2})
    assert states(edited) == "taa"
    edited.mark_to_cache()
    assert states(edited) == "tta"


def test_growth_stops_exactly_at_the_limit():
    filled = canvas([])
    for expected in (6, 10, 11, 11):
        filled.grow(4, limit=11)
        assert len(filled) == expected
    assert [block.stop - block.start for block in filled.blocks] == [2, 4, 4, 1]


def test_completeness_is_sticky_and_follows_the_block_before():
    filled = canvas([[3, MASK], [MASK, MASK], [MASK, MASK]])
    filled.mark_complete(0.6)
    assert [block.complete for block in filled.blocks] == [True, True, False, False]
    filled.mark_complete(0.5)
    assert [block.complete for block in filled.blocks] == [True, True, True, False]
    filled.mark_complete(1.0)
    assert [block.complete for block in filled.blocks] == [True, True, True, False]


def test_a_block_settles_only_behind_settled_ones():
    filled = canvas([[3, MASK], [4, 4], [5, 5]])
    filled.mark_to_cache()
    assert (states(filled), filled.cacheable_end) == ("taaa", 2)
    filled.mark_cached()
    filled.set_tokens([(3, 3)])
    assert states(filled) == "caaa"
    filled.mark_to_cache()
    assert (states(filled), filled.cacheable_end) == ("cttt", 8)
    filled.mark_cached()
    assert states(filled) == "cccc"
    filled.grow(2, 1000)
    assert (states(filled), filled.cacheable_end) == ("cccca", 8)


def test_a_fork_is_independent():
    filled = canvas([[MASK, MASK]])
    copied = filled.with_fills(((3, 7),))
    copied.set_tokens([(2, 6)])
    copied.mark_to_cache()
    copied.grow(2, 1000)
    assert (filled.generated, filled.masks, states(filled)) == ([MASK, MASK], 2, "ta")
    assert (copied.generated, states(copied)) == ([6, 7, MASK, MASK], "tta")
    assert (copied.prompt_len, copied.mask_id) == (2, MASK)


def test_views_are_frozen_copies():
    filled = canvas([[MASK, 3]])
    view = filled.block_views()[1]
    filled.set_tokens([(2, 3)])
    filled.mark_to_cache()
    assert (view.start, view.stop, view.state, view.masks, view.complete) == (2, 4, "active", 1, False)
    assert filled.blocks[1].state is BlockState.TO_CACHE
