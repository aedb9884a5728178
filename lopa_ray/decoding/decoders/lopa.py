"""LoPA (arXiv 2512.16229, section 3 and algorithm 1) on D2F's block-parallel canvas; with one branch D2F's decoder
(arXiv 2508.09192).

It follows the published code, quirks that decide tokens included, except that equal branches are evaluated once, the
mask token is never chosen, the last block is cut so that `max_new_tokens` is exact, and `stop_at_eos`.
"""

from __future__ import annotations

from typing import Literal

from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.block_canvas import BlockCanvas
from lopa_ray.decoding.branch_budget import NumBranches
from lopa_ray.decoding.decoder import SHORT, Decoder
from lopa_ray.decoding.decoders.block_parallel import BlockParallelSession, BlockParallelSettings
from lopa_ray.decoding.history import HistorySettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.protocol.plan import Segment


class BlockSettings(BlockParallelSettings, HistorySettings):
    """Block-parallel decoding as D2F and LoPA do it."""

    window_attention: Literal["full", "block_causal", "tiled"] = "full"
    """The positions that a position of the active window sees. full: all of the window; K/V then differ by branch, and
    the winner's are broadcast (two-phase commits). block_causal: its own and earlier blocks, of which the prompt is
    one; each worker then commits its own K/V (single-phase commits). tiled: the same with blocks counted from position
    0, for models that were trained so (SDAR, LLaDA2): what is left of the prompt lies in the answer's first block."""

    @property
    def prompt_attention(self) -> PromptAttention:
        if self.window_attention == "full":
            return PromptAttention()
        return super().prompt_attention if self.window_attention == "tiled" else PromptAttention("one_block")


class D2FSettings(BlockSettings):
    """Discrete diffusion forcing (D2F): block-parallel decoding of a single branch."""

    decoder: Literal["d2f"] = "d2f"


class LopaSettings(BlockSettings, LookaheadSettings):
    """Lookahead parallel decoding (LoPA, arXiv 2512.16229) on top of D2F."""

    decoder: Literal["lopa"] = "lopa"

    num_branches: NumBranches = 4
    """Branches per step, the anchor included; 1 is plain decoding. auto: as many as have paid off in this
    request's own steps, max_branches at most."""


class LopaSession(BlockParallelSession):
    settings: BlockSettings

    @property
    def _tiled(self) -> bool:
        return self.settings.window_attention == "tiled"

    @property
    def _shares_staged(self) -> bool:
        return self.settings.window_attention != "full"

    def _view_stop(self, position: int) -> int:
        if self.settings.window_attention == "full":
            return self.max_len
        return super()._view_stop(position)

    def _segments(self, canvas: BlockCanvas, start: int) -> tuple[Segment, ...]:
        if self.settings.window_attention == "full":
            return ((len(canvas), len(canvas)),)
        return super()._segments(canvas, start)


D2F = Decoder(LopaSession, D2FSettings(**SHORT, block_size=4))
LOPA = Decoder(LopaSession, LopaSettings(**SHORT, block_size=4, num_branches=4))
