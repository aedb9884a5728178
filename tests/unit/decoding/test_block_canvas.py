"""Blocks and the canvas: growth, completion, caching, copies."""

from __future__ import annotations

from lopa_ray.decoding.block_canvas import BlockCanvas

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
    return "".join({"active": "a", "to_cache": "t", "in_cache": "c"}[b.state] for b in filled.blocks)


def test_an_edit_leaves_masks_as_they_are_and_its_block_waits_where_it_may_be_edited_again():
    edited = canvas([[3, 4], [5, MASK]])
    edited.set_tokens([(2, 7)])
    assert edited.generated == [7, 4, 5, MASK]
    assert edited.masks == 1
    edited.mark_to_cache({2})
    assert states(edited) == "taa"
    edited.mark_to_cache()
    assert states(edited) == "tta"


def test_a_fork_is_independent():
    filled = canvas([[MASK, MASK]])
    copied = filled.with_fills(((3, 7),))
    copied.set_tokens([(2, 6)])
    copied.mark_to_cache()
    copied.grow(2, 1000)
    assert (filled.generated, filled.masks, states(filled)) == ([MASK, MASK], 2, "ta")
    assert (copied.generated, states(copied)) == ([6, 7, MASK, MASK], "tta")
    assert (copied.prompt_len, copied.mask_id) == (2, MASK)
