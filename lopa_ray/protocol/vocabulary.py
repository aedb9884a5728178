"""Vocabulary: what sessions need of a model's token ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of a model: how many there are, which are special, and which position a row of logits decides."""

    size: int
    mask_token_id: int  # -1, which no id is, for a model without a mask token
    eos_token_id: int
    stop_token_ids: tuple[int, ...] = ()  # further ids that end an answer, from the checkpoint's config
    shifted: bool = False  # row p - 1 of the logits decides position p
    canvas_length: int = 0  # of canvases that begin as random tokens; 0: the model fills masks
    delete_token_id: int | None = None  # stands for a token that is to go; None: the model deletes nothing
    split_token_id: int | None = None  # asks for a token before the one there; None: the model inserts none
    has_draft_head: bool = False  # the model has a `DraftHead`, which drafts without masks
    routing_block: int = 0  # rows begin at multiples of so many positions, if it is not 0
