"""Vocabulary: what sessions need of a model's token ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids of a model: how many there are, which are special, and which position a row of logits decides."""

    size: int
    mask_token_id: int
    eos_token_id: int
    stop_token_ids: tuple[int, ...] = ()
    """Further ids that end an answer, from the checkpoint's configuration."""
    shifted: bool = False
    """Row p - 1 of the logits decides position p."""
