"""What a request may ask of a decoder. Each decoder has one settings class.

Settings are frozen and validated when made; see `Strict` for how errors read.
"""

from __future__ import annotations

import json
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from lopa_ray.errors import SettingsError
from lopa_ray.json_schema import schema_regex
from lopa_ray.plan import Ranking
from lopa_ray.regex import alternatives, literal
from lopa_ray.selection import parse_metric
from lopa_ray.strict import Strict

GUIDED = ("guided_regex", "guided_choice", "guided_json")
"""Settings that say what the answer's text has to match."""


class GenerationSettings(Strict):
    """What every decoder understands."""

    decoder: str
    """Which decoder fills the canvas."""

    max_new_tokens: int = Field(default=256, ge=0)
    """Exact number of positions after the prompt; the answer may end earlier with EOS."""

    min_tokens: int = Field(default=0, ge=0)
    """The first `min_tokens` positions of the answer never get EOS."""

    ignore_eos: bool = False
    """Decode all of `max_new_tokens`; EOS neither ends the request nor stops new blocks."""

    stop_at_eos: bool = True
    """End once every position before the first EOS is decided. The published decoders do not:
    they fill the rest of the canvas too, and count those steps; false reproduces that."""

    temperature: float = Field(default=0.0, ge=0.0)
    """0 chooses the most likely token; above 0 tokens are drawn."""

    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Keep the smallest set of tokens whose probability reaches this, renormalised (also at temperature 0)."""

    top_k: int | None = Field(default=None, ge=1)
    """Keep this many most likely tokens, renormalised, after top_p (also at temperature 0)."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Same prompt, settings and seed: same tokens, on any number of workers."""

    ranking: Ranking = "probability"
    """Score that ranks positions."""

    top_logprobs: int = Field(default=0, ge=0, le=20)
    """How many of the most likely tokens the trace lists per position."""

    guided_regex: str | None = None
    """The answer's text is what this regular expression (Rust's syntax) matches as a whole."""

    guided_choice: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The answer's text is one of these."""

    guided_json: str | None = None
    """The answer's text is JSON that is valid under this JSON schema, given as JSON text or as a mapping."""

    @property
    def constrained(self) -> bool:
        """Whether the answer's text has to match something."""
        return any(getattr(self, name) is not None for name in GUIDED)

    @property
    def pattern(self) -> str | None:
        """The regular expression that the answer's text has to match; None: any text will do.

        Raises SettingsError for a JSON schema that cannot be kept.
        """
        if self.guided_json is not None:
            return schema_regex(self.guided_json)
        if self.guided_choice is not None:
            return alternatives(map(literal, self.guided_choice))
        return self.guided_regex

    @field_validator("guided_choice", mode="before")
    @classmethod
    def _choices_as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("guided_json", mode="before")
    @classmethod
    def _schema_as_text(cls, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _one_pattern_that_can_end(self) -> Self:
        given = [name for name in GUIDED if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"got {' and '.join(given)}; allowed: one of them; leave the others out")
        if given and self.ignore_eos:
            raise ValueError(
                f"ignore_eos: got true with a pattern or schema ({given[0]}), whose answers end where the match "
                "does; leave ignore_eos out"
            )
        return self

    @model_validator(mode="after")
    def _min_fits_max(self) -> Self:
        if self.min_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_tokens ({self.min_tokens}) exceeds max_new_tokens ({self.max_new_tokens}); lower it"
            )
        return self


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
    """What positions of the active window see: all of it, or their own and earlier blocks."""

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
    def _protocol_fits_attention(self) -> Self:
        if self.window_attention == "full" and self.commit_protocol == "single_phase":
            raise ValueError(
                "commit_protocol single_phase needs window_attention block_causal: under full attention the "
                "K/V of finished blocks differ by branch; use two_phase or leave commit_protocol out"
            )
        # What the attention implies counts as not set, so a copy with another attention gets its own.
        if (self.commit_protocol == "single_phase") == (self.window_attention == "block_causal"):
            self.model_fields_set.discard("commit_protocol")
        return self


class D2FSettings(BlockSettings):
    """Discrete diffusion forcing (D2F): block-parallel decoding of a single branch."""

    decoder: Literal["d2f"] = "d2f"


class LopaSettings(BlockSettings):
    """Lookahead parallel decoding (LoPA, arXiv 2512.16229) on top of D2F."""

    decoder: Literal["lopa"] = "lopa"

    num_branches: int = Field(default=4, ge=1, le=1024)
    """Branches per step, the anchor included; 1 is plain decoding."""

    branch_budget: Literal["fixed", "load"] = "fixed"
    """fixed: always num_branches. load: at most num_branches, fewer while many requests are in
    flight; the tokens then depend on the load."""

    branch_confidence: str = "mean"
    """How a branch is scored by its empty positions: mean, or bottom(ratio)."""

    creation_confidence_alpha: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the creation confidence (1.0 for the anchor) in the branch's score."""

    anchor: Literal["compete", "win", "omit"] = "compete"
    """Ablations: let the anchor compete (LoPA), always win, or leave it out while there are forks."""

    @field_validator("branch_confidence")
    @classmethod
    def _known_metric(cls, value: str) -> str:
        parse_metric(value)
        return value


class FastDllmSettings(GenerationSettings):
    """Fast-dLLM (arXiv 2505.22618): semi-autoregressive blocks with a dual cache, for Dream."""

    decoder: Literal["fast_dllm"] = "fast_dllm"

    cache: Literal["dual"] = "dual"
    """dual: K/V of everything around the current block is cached."""

    block_size: int = Field(default=32, ge=1)
    """Positions per block; the last block is cut to fit `max_new_tokens`."""

    fill: Literal["threshold", "schedule"] = "threshold"
    """Fill by confidence, or a fixed number of positions per step."""

    confidence_threshold: float = Field(default=0.9, ge=0.0, le=1.0)
    """Positions with at least this probability are filled, and always the best one (fill: threshold)."""

    steps: int | None = Field(default=None, ge=1)
    """Forward passes for the whole answer, spread evenly over its blocks (fill: schedule)."""

    @model_validator(mode="after")
    def _schedule_has_steps(self) -> Self:
        if (self.fill == "schedule") != (self.steps is not None):
            raise ValueError(
                f"fill {self.fill!r} with steps {self.steps}; give steps with fill: schedule, and only then"
            )
        if self.steps is not None and (self.steps % self.num_blocks or self.steps_per_block < 2):
            raise ValueError(
                f"steps: got {self.steps}; allowed: a multiple of the number of blocks ({self.num_blocks}), "
                "at least twice as many"
            )
        return self

    @property
    def num_blocks(self) -> int:
        """Blocks in the answer."""
        return max(1, -(-self.max_new_tokens // self.block_size))

    @property
    def steps_per_block(self) -> int:
        """Forwards per block under `fill: schedule`."""
        return (self.steps or 0) // self.num_blocks


DECODER_SETTINGS: dict[str, type[GenerationSettings]] = {
    "lopa": LopaSettings,
    "d2f": D2FSettings,
    "fast_dllm": FastDllmSettings,
}


def decode_settings(values: dict[str, Any]) -> GenerationSettings:
    """Settings from plain values; `decoder` (default lopa) chooses the class.

    Raises SettingsError for an unknown decoder and for whatever its class refuses.
    """
    name = values.get("decoder", "lopa")
    if not isinstance(name, str) or name not in DECODER_SETTINGS:
        raise SettingsError(
            f"decoder: got {name!r}; allowed: {', '.join(DECODER_SETTINGS)}; choose one of these"
        )
    return DECODER_SETTINGS[name](**values)


def override(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`values` with `changes` on top.

    When the changes switch to another decoder, values that it has no use for are dropped:
    they belonged to the decoder that was switched away from.
    """
    name = changes.get("decoder", values.get("decoder", "lopa"))
    if name != values.get("decoder", "lopa") and isinstance(name, str) and name in DECODER_SETTINGS:
        known = DECODER_SETTINGS[name].model_fields
        values = {key: value for key, value in values.items() if key in known}
    return {**values, **changes}
