"""Edits: decided tokens that a later call replaces (LLaDA2.1, DMax). What their decoders share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import Field

from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.canvas import Canvas
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.protocol.outcome import Decision

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")

REFUSED_WITH_EDITS: dict[str, str] = {
    "lookahead": "a draft of a later step assumes tokens that an edit may replace; use lookahead lopa or leave {} out",
    **dict.fromkeys(PENALTIES, "a token would count against itself where it is scored again; leave {} out"),
}
"""Settings that tokens which change contradict; see `GenerationSettings.refused`."""


class EditSettings(LookaheadSettings):
    """The setting of decoders that edit until nothing changes."""

    max_post_steps: int = Field(default=16, ge=0)
    """The maximum number of forward passes that edit a block without masks."""


def edits(scores: Scores, canvas: Canvas) -> Iterator[Decision]:
    """The most likely token of each decided position that has another token."""
    for position, score in scores.items():
        if canvas.ids[position] not in (canvas.mask_id, score.report.tokens.item(score.row)):
            yield score.decision


class BlockEdits(NamedTuple):
    """The state of a block after its steps, where several blocks are edited at the same time."""

    steps: int = 0
    post_steps: int = 0  # steps that began without a mask in it
    changed: bool = True  # whether the last step filled or edited anything in it
    stability: float = 0.0  # the share of its tokens before the last step which that step found most likely
