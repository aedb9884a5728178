"""Where an answer, or a hole of it, ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def length_through_end(ids: Sequence[int], end_token_ids: Collection[int]) -> int | None:
    """Tokens up to and including the first of `end_token_ids` (see `DecodeSession`); None without one."""
    if frozenset(end_token_ids).isdisjoint(ids):
        return None
    return next(at for at, token in enumerate(ids, 1) if token in end_token_ids)


def final_part(canvas: Sequence[int], editable: range, prompt_len: int) -> Sequence[int]:
    """The beginning of a canvas that is before the positions that later steps may edit; all of it if none are."""
    return canvas[: editable.start - prompt_len] if editable else canvas
