"""LoPA (arXiv 2512.16229, section 3 and algorithm 1) on D2F's block-parallel canvas.

With one branch this is D2F's decoder (arXiv 2508.09192). With blocks counted from position 0 it decodes models of block
diffusion (SDAR, LLaDA2) with several of their blocks in flight. Semantics follow the published
code, quirks that decide tokens included, with these deviations: two identical branches are
evaluated once, the mask token is never chosen, the last block is cut so that
`max_new_tokens` is exact, and a request may end at the first EOS (`stop_at_eos`).
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.decoding.block_canvas import BlockCanvas
from lopa_ray.decoding.branch_settings import NumBranches
from lopa_ray.decoding.decoders.block_parallel import BlockParallelSession, BlockParallelSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.settled import SettledSettings
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.plan import Segment


class BlockSettings(BlockParallelSettings, SettledSettings):
    """Block-parallel decoding as D2F and LoPA do it."""

    window_attention: Literal["full", "block_causal"] = "full"
    """The positions that a position of the active window sees: all of the window, or its own and earlier blocks."""

    block_origin: Literal["answer", "start"] = "answer"
    """Where blocks are counted from. answer: the prompt is one block, and the first behind it begins with the answer
    (D2F). start: position 0, for models that were trained so (SDAR, LLaDA2): the prompt is blocks too, and what is
    left of it lies in the first block of the answer. Needs window_attention block_causal."""

    commit_protocol: Literal["two_phase", "single_phase"] = "two_phase"
    """two_phase: the winner's K/V is broadcast (needed with full attention, where K/V differ by
    branch). single_phase: each worker commits its own (block-causal only). Default: the one
    that the attention implies."""

    @model_validator(mode="before")
    @classmethod
    def _protocol_follows_attention(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("commit_protocol") is None:
            causal = values.get("window_attention") == "block_causal"
            values = {**values, "commit_protocol": "single_phase" if causal else "two_phase"}
        return values

    @model_validator(mode="after")
    def _origin_needs_blocks(self) -> Self:
        if self.block_origin == "start" and self.window_attention == "full":
            raise SettingsError(
                "block_origin start with window_attention full, which has no blocks; use block_causal or leave "
                "block_origin out",
                setting="block_origin",
            )
        return self

    @model_validator(mode="after")
    def _protocol_allows_attention(self) -> Self:
        if self.window_attention == "full" and self.commit_protocol == "single_phase":
            raise SettingsError(
                "commit_protocol single_phase needs window_attention block_causal: under full attention the "
                "K/V of finished blocks differ by branch; use two_phase or leave commit_protocol out",
                setting="commit_protocol",
            )
        return self

    @property
    def prompt_attention(self) -> PromptAttention:
        """See `GenerationSettings.prompt_attention`."""
        if self.window_attention == "full":
            return PromptAttention()
        return super().prompt_attention if self.block_origin == "start" else PromptAttention("one_block")

    @property
    def implied(self) -> frozenset[str]:
        """`commit_protocol`, unless it is another than that of the attention. See `StrictModel.implied`."""
        follows = (self.commit_protocol == "single_phase") == (self.window_attention == "block_causal")
        return frozenset({"commit_protocol"} if follows else ())


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
    """One LoPA request: as many blocks in flight as the thresholds allow."""

    settings: BlockSettings

    @property
    def _tiled(self) -> bool:
        return self.settings.block_origin == "start"

    @property
    def _shares_staged(self) -> bool:
        return self.settings.commit_protocol == "single_phase"

    def _view_stop(self, position: int) -> int:
        if self.settings.window_attention == "full":
            return self.max_len
        return super()._view_stop(position)

    def _segments(self, canvas: BlockCanvas, start: int) -> tuple[Segment, ...]:
        if self.settings.window_attention == "full":
            return ((len(canvas), len(canvas)),)
        return super()._segments(canvas, start)

    @property
    def exact_cache(self) -> bool:
        """Under block-causal attention."""
        return self.settings.window_attention == "block_causal"
