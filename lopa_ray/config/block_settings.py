"""Settings of decoders with several blocks in flight."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lopa_ray.config.generation_settings import GenerationSettings


class BlockSettings(GenerationSettings):
    """Block-parallel decoding: blocks are appended before the ones in front are done."""

    block_size: int = Field(default=32, ge=1)
    """Positions per block; the last block is cut to fit `max_new_tokens`."""

    block_add_threshold: float = Field(default=0.1, ge=0.0, le=1.0)
    """A block is appended when the last one is decided to at least this share."""

    decoded_token_threshold: float = Field(default=0.95, ge=0.0, le=1.0)
    """A block becomes complete (it fills at least one position per step) when the block
    before it is decided to at least this share."""

    confidence_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """Positions whose probability is strictly above this are filled."""

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
            raise ValueError(
                "block_origin start with window_attention full, which has no blocks; use block_causal or leave "
                "block_origin out"
            )
        return self

    @model_validator(mode="after")
    def _protocol_allows_attention(self) -> Self:
        if self.window_attention == "full" and self.commit_protocol == "single_phase":
            raise ValueError(
                "commit_protocol single_phase needs window_attention block_causal: under full attention the "
                "K/V of finished blocks differ by branch; use two_phase or leave commit_protocol out"
            )
        # What the attention implies counts as not set, so a copy with another attention gets its own.
        if (self.commit_protocol == "single_phase") == (self.window_attention == "block_causal"):
            self.model_fields_set.discard("commit_protocol")
        return self
