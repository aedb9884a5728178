"""Edits: decided tokens that a later call replaces (LLaDA2.1, DMax). What their decoders share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.step_report import BranchReport

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")

REFUSED_WITH_EDITS: dict[str, str] = {
    "lookahead": "a draft of a later step assumes tokens that an edit may replace; use lookahead lopa or leave {} out",
    **dict.fromkeys(PENALTIES, "a token would count against itself where it is scored again; leave {} out"),
}
"""Settings that tokens which change contradict; see `GenerationSettings.refused`."""


class EditSettings(LookaheadSettings):
    """The setting of decoders that edit until nothing changes."""

    max_post_steps: int = Field(default=16, ge=0)
    """With edits: most forward passes that edit a block without masks."""


def report_of_masks(report: BranchReport, ids: Sequence[int], mask: int) -> BranchReport:
    """The rows of a report whose positions are masked in `ids`, the tokens of the branch from position 0 on."""
    return report.select(np.array([ids[p] == mask for p in report.positions.tolist()], np.bool_))


def edits(scores: Scores, ids: Sequence[int], mask: int) -> Iterator[Decision]:
    """The most likely token of each decided position of `ids` that has another one."""
    for position, score in scores.items():
        if ids[position] not in (mask, score.report.tokens.item(score.row)):
            yield score.decision


class BlockEdits(NamedTuple):
    """What the steps on a block have left of it, where several blocks are edited at the same time."""

    steps: int = 0
    post_steps: int = 0
    """Steps that began without a mask in it."""
    changed: bool = True
    """Whether the last step filled or edited anything in it."""
    stability: float = 0.0
    """The share of its tokens before the last step which that step found most likely."""
