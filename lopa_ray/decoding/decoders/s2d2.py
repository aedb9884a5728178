"""S2D2 (arXiv 2603.25702): block diffusion, LLaDA2.1's editing decoder and D2F, each with drafts that the model
verifies by itself. See `self_verification`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from lopa_ray.decoding.block_canvas import BlockCanvas
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.canvas import Canvas
from lopa_ray.decoding.decoder import SHORT, Decoder
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSession, BlockDiffusionSettings
from lopa_ray.decoding.decoders.editing import EditingSession, EditingSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSession
from lopa_ray.decoding.decoders.self_verification import SelfVerificationSettings, SelfVerifyingSession
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.unmasking_rules import select_above_threshold_or_count
from lopa_ray.protocol.plan import Branch


class S2D2Settings(SelfVerificationSettings, BlockDiffusionSettings):
    """S2D2 (arXiv 2603.25702): block diffusion with drafts that the model verifies by itself. The published decoder
    verifies by drawn numbers also where tokens are not drawn: answers depend on `seed`."""

    decoder: Literal["s2d2"] = "s2d2"  # type: ignore[assignment]  # another decoder than its base

    causal_cache: bool = True
    """Decided tokens see no later ones, in cached K/V and before a block's first mask, as where drafts are verified."""

    remasking: Literal["low_confidence_dynamic", "low_confidence_static", "sequential"] = (
        "low_confidence_dynamic"
    )
    """The positions that a call fills besides drafts that are verified; see decoder `block_diffusion`."""


class S2D2Session(SelfVerifyingSession[Canvas], BlockDiffusionSession):
    settings: S2D2Settings

    def _window(self) -> Window:
        window = super()._window()
        if not self.settings.causal_cache:
            return window
        if not window.scored:
            return replace(window, causal_stop=window.input_span.stop)
        first = self._canvas.masked_positions(self._block)[0]
        causal = tuple((stop, stop) for stop in range(window.input_span.start + 1, first + 1))
        return replace(window, segments=(*causal, *window.segments))

    def _fall_back(self, scores: Scores) -> list[int]:
        missing = self._fill_count(self._calls) - len(self._verified)
        return self._select(scores, missing) if missing > 0 else []

    def _end_step(self, branch: Branch) -> None:
        """The schedule counts a call that drafts and one that verifies as one."""
        if not self._drafts:
            super()._end_step(branch)


class S2D2EditingSettings(SelfVerificationSettings, EditingSettings):
    """S2D2 on LLaDA2.1: edited blocks, with drafts that the model verifies. Answers depend on `seed`."""

    decoder: Literal["s2d2_editing"] = "s2d2_editing"  # type: ignore[assignment]  # as above


class S2D2EditingSession(SelfVerifyingSession[Canvas], EditingSession):
    settings: S2D2EditingSettings

    def _fall_back(self, scores: Scores) -> list[int]:
        s, missing = self.settings, self.settings.num_to_transfer - len(self._verified)
        return select_above_threshold_or_count(scores, s.confidence_threshold, missing) if missing > 0 else []


class S2D2D2FSettings(SelfVerificationSettings, D2FSettings):
    """S2D2 on D2F: block-parallel decoding, with drafts that the model verifies. Answers depend on `seed`."""

    decoder: Literal["s2d2_d2f"] = "s2d2_d2f"  # type: ignore[assignment]  # as above


class S2D2D2FSession(SelfVerifyingSession[BlockCanvas], LopaSession):
    settings: S2D2D2FSettings

    def _may_grow(self, canvas: BlockCanvas) -> bool:
        return not self._drafts and super()._may_grow(canvas)

    def _fall_back(self, scores: Scores) -> list[int]:
        """Of a complete block one position; other blocks are filled by what is verified alone."""
        positions: list[int] = []
        for masks, threshold, least in self.rule_blocks():
            left = {p: scores[p] for p in masks if p in scores}
            missing = least - (len(masks) - len(left))
            positions += select_above_threshold_or_count(left, threshold, missing) if missing > 0 else []
        return positions


_SHORT = SHORT | {"min_expected": 0.5}
S2D2 = Decoder(S2D2Session, S2D2Settings(**_SHORT, block_size=4))
S2D2_EDITING = Decoder(S2D2EditingSession, S2D2EditingSettings(**_SHORT, block_size=8, editing_threshold=0.2))
S2D2_D2F = Decoder(S2D2D2FSession, S2D2D2FSettings(**_SHORT, block_size=4))
