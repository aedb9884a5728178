"""Vocabulary: what the decoding side has to know of a model's token ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a session must know of its model: how many ids there are, which are special, and where logits point."""

    size: int
    mask_token_id: int
    eos_token_id: int
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end an answer like EOS, as the checkpoint says."""
    shifted: bool = False
    """Row p - 1 of the logits decides position p."""
