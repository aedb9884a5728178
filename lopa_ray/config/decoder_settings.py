"""The settings of each decoder.

Settings are frozen and validated when made; see `StrictModel` for how errors read.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from lopa_ray.config.block_settings import BlockSettings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.lookahead_settings import LookaheadSettings, NumBranches
from lopa_ray.errors import SettingsError

MAX_STEPS = 2**16
"""Longest schedule of an answer: it is kept in memory as a whole."""


class D2FSettings(BlockSettings):
    """Discrete diffusion forcing (D2F): block-parallel decoding of a single branch."""

    decoder: Literal["d2f"] = "d2f"


class LopaSettings(BlockSettings, LookaheadSettings):
    """Lookahead parallel decoding (LoPA, arXiv 2512.16229) on top of D2F."""

    decoder: Literal["lopa"] = "lopa"

    num_branches: NumBranches = 4
    """Branches per step, the anchor included; 1 is plain decoding. auto: as many as have paid off in this
    request's own steps, max_branches at most."""


class MaskedAnswerSettings(LookaheadSettings):
    """The whole answer is masked from the start, and decided block by block."""

    sampler: Literal["auto", "dream", "llada"] = "auto"
    """Whose published sampler: how a schedule is rounded, what a block's first call fills, and in which
    precision confidences are computed. auto: dream for models whose logits are shifted, as Dream's are."""

    block_size: int | None = Field(default=None, ge=1)
    """Positions per block (semi-autoregressive decoding); the last block is cut to fit `max_new_tokens`.
    None: the whole answer is one block."""

    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Forward passes for the whole answer, spread evenly over its blocks. None: one per position."""

    eps: float = Field(default=1e-3, gt=0.0, lt=1.0)
    """Noise level at which Dream's schedule ends."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the answer."""
        return max(1, -(-self.max_new_tokens // (self.block_size or max(1, self.max_new_tokens))))

    @model_validator(mode="after")
    def _steps_fit_blocks(self) -> Self:
        if self.steps is not None and self.steps % self.num_blocks:
            raise ValueError(
                f"steps: got {self.steps}; allowed: a multiple of the number of blocks ({self.num_blocks})"
            )
        return self


class VanillaSettings(MaskedAnswerSettings):
    """The samplers that Dream and LLaDA were published with: a schedule, and no cache."""

    decoder: Literal["vanilla"] = "vanilla"

    remasking: Literal["low_confidence", "random", "origin"] = "low_confidence"
    """Which positions a call fills: the best ranked; any, as many; or each with the schedule's chance.
    Dream's maskgit_plus, topk_margin and entropy are low_confidence with ranking probability, margin and
    neg_entropy."""

    alg_temp: float = Field(default=0.0, ge=0.0)
    """Above 0 the best ranked are drawn, from the softmax of score ÷ alg_temp."""

    @model_validator(mode="after")
    def _alg_temp_ranks(self) -> Self:
        if self.alg_temp > 0 and self.remasking != "low_confidence":
            raise ValueError(
                f"alg_temp {self.alg_temp} with remasking {self.remasking}: nothing is ranked there; leave "
                "alg_temp out or use remasking low_confidence"
            )
        return self


class FastDllmSettings(MaskedAnswerSettings):
    """Fast-dLLM (arXiv 2505.22618): parallel decoding by confidence, and approximate K/V caches."""

    decoder: Literal["fast_dllm"] = "fast_dllm"

    block_size: int | None = Field(default=32, ge=1)
    """Positions per block; the last block is cut to fit `max_new_tokens`. None: the answer is one block."""

    cache: Literal["none", "prefix", "dual"] = "dual"
    """K/V that a block's first call leaves for its other calls: none, of everything before the block,
    or of everything around it."""

    fill: Literal["threshold", "factor", "schedule"] = "threshold"
    """Fill by confidence, by confidence and number, or a fixed number of positions per call."""

    confidence_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """Positions with at least this probability are filled, and always the best one (fill: threshold)."""

    factor: float = Field(default=1.0, gt=0.0)
    """Fills the n best as long as the n-th has at least probability 1 - factor ÷ (n + 1) (fill: factor)."""

    steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """fill schedule: forward passes for the whole answer, spread evenly over its blocks. fill threshold:
    fill no faster than an even pace of that many passes would; None: no such limit."""

    @model_validator(mode="after")
    def _steps_fit_fill(self) -> Self:
        if (self.fill == "schedule" and self.steps is None) or (
            self.fill == "factor" and self.steps is not None
        ):
            raise ValueError(
                f"fill {self.fill!r} with steps {self.steps}; give steps with fill: schedule, and never with "
                "fill: factor"
            )
        if self.fill == "schedule" and self.cache != "none" and (self.steps or 0) < 2 * self.num_blocks:
            raise ValueError(
                f"steps: got {self.steps}; allowed: a multiple of the number of blocks ({self.num_blocks}), "
                "at least twice as many"
            )
        return self


class BlockDiffusionSettings(LookaheadSettings):
    """Block diffusion (SDAR, arXiv 2510.06303; with sub-blocks Fast-dLLM v2, arXiv 2509.26328): blocks one after
    the other, earlier ones cached exactly."""

    decoder: Literal["block_diffusion"] = "block_diffusion"

    block_size: int = Field(default=4, ge=1)
    """Positions per block, counted from the start of the prompt; what the model was trained with."""

    denoising_steps: int | None = Field(default=None, ge=1)
    """Forward passes per block (per sub-block, where there are any) over which its positions are spread
    evenly. None: one per position."""

    minimal_topk: int | None = Field(default=None, ge=1)
    """LLaDA2.0: a block takes at most max_new_tokens ÷ this passes, so short answers are filled in larger shares.
    None: no such limit."""

    remasking: Literal["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"] = (
        "low_confidence_dynamic"
    )
    """Which positions a pass fills. static: its share, best ranked first. dynamic: all above the threshold
    if they are more than that. sequential: its share from the left. entropy_bounded: the surest, as long as
    their entropies sum up to less than `eb_threshold`."""

    confidence_threshold: float = Field(default=0.85, ge=0.0, le=1.0)
    """Positions whose probability is strictly above this are filled (low_confidence_dynamic)."""

    eb_threshold: float = Field(default=0.35, ge=0.0)
    """Bound on the summed entropy of what a pass fills, in nats (entropy_bounded)."""

    sdar_confidence: float = Field(default=1.0, gt=0.0)
    """Temperature that shapes confidences where tokens are not drawn: probabilities are those of
    softmax(logits ÷ this), tokens the most likely ones all the same."""

    fuse_store: bool = False
    """The pass that caches a finished block is also the next block's first one: the same tokens from one
    pass fewer per block. The published decoder has a pass of its own for it."""

    sub_block_size: int | None = Field(default=None, ge=1)
    """Fast-dLLM v2: a block is filled in parts of this size, one after the other. None: as a whole."""

    sub_block_cache: bool = False
    """Passes on a sub-block feed it alone, and read K/V around it as a pass on the whole block left them. Such a
    pass begins each sub-block; others follow while its first position is masked."""

    @model_validator(mode="after")
    def _sub_blocks_fit(self) -> Self:
        size = self.sub_block_size
        if size is None and self.sub_block_cache:
            raise ValueError(
                "sub_block_cache without sub_block_size: there is nothing to cache around; set sub_block_size "
                "or leave sub_block_cache out"
            )
        if size is not None and self.block_size % size:
            raise ValueError(
                f"sub_block_size: got {size}; allowed: a divisor of block_size ({self.block_size})"
            )
        if size is not None and self.fuse_store:
            raise ValueError(
                "fuse_store with sub_block_size: a pass that caches a block decides the next one's first token "
                "before any other; leave one of them out"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _entropy_ranks(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("remasking") == "entropy_bounded":
            return {"ranking": "neg_entropy", **values}
        return values

    @model_validator(mode="after")
    def _entropy_needs_its_ranking(self) -> Self:
        if self.remasking == "entropy_bounded" and self.ranking != "neg_entropy":
            raise ValueError(
                f"ranking {self.ranking} with remasking entropy_bounded, which ranks by neg_entropy; leave "
                "ranking out"
            )
        if self.remasking == "entropy_bounded":
            # What the rule implies counts as not set, so a copy with another rule ranks as usual.
            self.model_fields_set.discard("ranking")
        return self


DECODER_SETTINGS: dict[str, type[GenerationSettings]] = {
    "lopa": LopaSettings,
    "d2f": D2FSettings,
    "vanilla": VanillaSettings,
    "fast_dllm": FastDllmSettings,
    "block_diffusion": BlockDiffusionSettings,
}


def parse_decoder_settings(values: dict[str, Any]) -> GenerationSettings:
    """Settings of a decoder from plain values; `decoder` (default lopa) chooses the class.

    Raises SettingsError for an unknown decoder and for whatever its class refuses.
    """
    name = values.get("decoder", "lopa")
    if not isinstance(name, str) or name not in DECODER_SETTINGS:
        raise SettingsError(
            f"decoder: got {name!r}; allowed: {', '.join(DECODER_SETTINGS)}; choose one of these",
            setting="decoder",
        )
    known = DECODER_SETTINGS[name].model_fields
    for key in (key for key in values if key not in known):
        others = [other for other, settings in DECODER_SETTINGS.items() if key in settings.model_fields]
        if others:
            raise SettingsError(
                f"unknown setting {key} = {values[key]!r} for decoder {name}; decoders with it: "
                f"{', '.join(others)}; set decoder to one of these, or leave {key} out",
                setting=key,
            )
    return DECODER_SETTINGS[name](**values)


def merge_decoder_settings(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`values` with `overrides` on top.

    When these switch to another decoder, values are dropped that it does not know, or has another
    default for: they were meant for the decoder before.
    """
    old = values.get("decoder", "lopa")
    new = overrides.get("decoder", old)
    if old != new and all(isinstance(name, str) and name in DECODER_SETTINGS for name in (old, new)):
        old_fields, new_fields = (DECODER_SETTINGS[name].model_fields for name in (old, new))
        shared = {
            key
            for key in new_fields
            if key in old_fields and new_fields[key].default == old_fields[key].default
        }
        values = {key: value for key, value in values.items() if key in shared}
    return {**values, **overrides}
