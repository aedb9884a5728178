"""Settings of a request for every decoder: lengths, sampling, ends and structure of the answer.

A new sampling parameter begins here: HTTP requests have a field for it, which an `HttpField` in its annotation may
shape. A field of the same name in `SamplingParams` takes it to the workers, one in `RowNumbers` takes its value to each
row, and `score_rows` uses it. A filter is also a flag of `ScoringKind`, since greedy rows are scored without any.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from lopa_ray.config.given_part import GivenPart, parse_given_parts
from lopa_ray.config.http_field import (
    MAX_LOGIT_BIAS,
    Draft,
    HttpField,
    LogitBias,
    Seed,
    TokenIds,
    TopK,
    Words,
)
from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.config.strict import StrictModel, numbers_from_text
from lopa_ray.constraints.constraint_spec import ConstraintSpec
from lopa_ray.constraints.structural_tag import StructuralTag
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.sampling_params import Ranking

MAX_BAD_WORDS_CHARS = 4096
"""Characters of all `bad_words`: each place in them is looked at with every token."""

GUIDED = ("guided_regex", "guided_choice", "guided_json", "guided_structural_tag")
"""Settings that restrict the answer's text."""

GIVING = ("given_parts", "suffix")  # settings that give parts of the answer

OF_ANSWER = (*GIVING, "draft")  # settings that are about the tokens of one answer

MAX_GIVEN_PARTS = 1024  # parts of an answer: what each step costs follows them

CONSTRAINING = (*GUIDED, "bad_words")  # settings that make a constraint, which takes a while

UNREVISED = {
    "draft": "it never replaces a token that is decided, so a draft would stay as it is; use a decoder that does "
    "(editing, indel, dmax, multi_block with editing_threshold, renoising), or given_parts for what is to stay"
}
"""The reason of decoders that take no draft; see `GenerationSettings.refused`."""

Conflict: TypeAlias = tuple[str, str]  # the setting that is wrong, and the message after its name


class GenerationSettings(StrictModel):
    """The settings of every decoder."""

    recommended_by_checkpoints: ClassVar[tuple[str, ...]] = (
        "temperature",
        "top_p",
        "top_k",
        "repetition_penalty",
    )
    """Settings that a checkpoint may have a default for, in its `generation_config.json`."""

    source: ClassVar[str | None] = None
    """`module:Class` of a decoder that a user's configuration names so; see `register_decoder`."""

    decoder: Annotated[str, HttpField(in_lopa=True)]
    """The decoder that fills the canvas."""

    max_new_tokens: Annotated[int, HttpField(fields="max_tokens or max_completion_tokens")] = Field(
        default=256, ge=0
    )
    """Exact number of positions after the prompt; the answer may end earlier with EOS."""

    min_tokens: int = Field(default=0, ge=0)
    """The first `min_tokens` positions of the answer never get EOS."""

    ignore_eos: bool = False
    """Neither EOS nor the other end tokens that the checkpoint names end the request or stop new blocks. Without
    `stop_token_ids` all of `max_new_tokens` is decoded."""

    stop_at_eos: Annotated[bool, HttpField(in_lopa=True)] = True
    """End once every position before the first EOS is decided. The published decoders do not:
    they fill the rest of the canvas too, and count those steps; false reproduces that."""

    stop_token_ids: Annotated[tuple[int, ...], HttpField(TokenIds)] = ()
    """Ids that end the answer like EOS, in addition to the checkpoint's; with `ignore_eos` only these ids end it."""

    temperature: Annotated[float, HttpField(Annotated[float, Field(ge=0, le=2)])] = Field(default=0.0, ge=0.0)
    """0 chooses the most likely token; above 0 tokens are drawn."""

    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    """Keep the smallest set of tokens whose probability reaches this, renormalised (also at temperature 0)."""

    top_k: Annotated[int | None, HttpField(TopK, off=(0, -1))] = Field(default=None, ge=1)
    """Keep this many most likely tokens, renormalised, after top_p (also at temperature 0)."""

    seed: Annotated[int, HttpField(Seed)] = Field(default=0, ge=0, lt=2**63)
    """Same prompt, settings and seed: same tokens, on any number of workers."""

    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100.0)
    """Above 1 (off) tokens of the prompt and of the answer become less likely: positive logits are divided by it,
    others multiplied (arXiv 1909.05858)."""

    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    """Subtracted from a token's logit as often as the answer has the token, as decided so far, before and after the
    position."""

    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    """Subtracted once from the logits of tokens that the answer has."""

    logit_bias: Annotated[
        dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100.0, le=100.0)]], HttpField(LogitBias)
    ] = Field(default={}, max_length=MAX_LOGIT_BIAS)
    """Token id → what is added to its logit, before penalties; -100 practically excludes a token, 100
    practically forces it. At most 1024 tokens."""

    ranking: Annotated[Ranking, HttpField(in_lopa=True)] = "probability"
    """Score that ranks positions."""

    top_logprobs: Annotated[int, HttpField(fields="logprobs and top_logprobs")] = Field(
        default=0, ge=0, le=20
    )
    """How many of the most likely tokens the trace lists per position."""

    trajectory: Literal[False, True, "entropies"] = False
    """Whether the result says how the answer came about: the step that decided each token, with log-probabilities, for
    trainers. entropies: also of each distribution. See `Trajectory`."""

    guided_regex: Annotated[str | None, HttpField(fields="guided_regex")] = None
    """The answer's text is what this regular expression (Rust's syntax) matches as a whole."""

    guided_choice: Annotated[tuple[str, ...] | None, HttpField(fields="guided_choice")] = Field(
        default=None, min_length=1
    )
    """The answer's text is one of these."""

    guided_json: Annotated[str | None, HttpField(fields="response_format or guided_json")] = None
    """The answer's text is JSON that is valid under this JSON schema, given as JSON text or as a mapping."""

    guided_structural_tag: Annotated[str | None, HttpField(fields="structured_outputs.structural_tag")] = None
    """The answer's text keeps to these structures wherever one of their triggers occurs; JSON text or a mapping,
    see `lopa_ray.constraints.structural_tag`."""

    bad_words: Annotated[tuple[str, ...], HttpField(Words)] = Field(default=(), max_length=256)
    """No run of whole tokens in the answer spells one of these words, by itself or after a space."""

    given_parts: Annotated[tuple[GivenPart, ...], HttpField(fields="given_parts")] = Field(
        default=(), max_length=MAX_GIVEN_PARTS
    )
    """Parts of the answer that the request gives (infilling). They are decided before the first step, and among the
    `max_new_tokens` positions of the answer; the holes between them are what the model fills. EOS in a hole ends the
    hole alone."""

    suffix: Annotated[str | None, HttpField(fields="suffix")] = None
    """Text after the answer, which the model sees from the first step: the answer stands between prompt and suffix, and
    has at most `max_new_tokens` tokens. Empty: none."""

    draft: Annotated[str | tuple[int, ...] | None, HttpField(Draft)] = None
    """A draft of the answer, as text or token ids, which the model revises: the answer begins with it instead of masks
    or noise. Mask tokens in it, and all positions after it, are left to the model; given parts replace its tokens."""

    def given(self, mode: Literal["json", "python"] = "python") -> dict[str, Any]:
        """The decoder and the values that were set, from which `parse_decoder_settings` makes the same settings."""
        values = self.model_dump(mode=mode, exclude_unset=True, exclude={*self.implied})
        return {**values, "decoder": self.source or self.decoder}

    @property
    def prompt_attention(self) -> PromptAttention:
        return PromptAttention()

    @property
    def refused(self) -> Mapping[str, str]:
        """Settings this decoder does not support → reason; `{}` stands for the setting's name."""
        return UNREVISED

    @property
    def constrained(self) -> bool:
        return self.constraint_setting is not None

    @property
    def constraint_setting(self) -> str | None:
        """The name of the setting that constrains the answer's text; of a pattern and `bad_words`, the pattern's."""
        return next((name for name in CONSTRAINING if getattr(self, name) not in (None, ())), None)

    @property
    def constraint_spec(self) -> ConstraintSpec:
        return ConstraintSpec(*(getattr(self, name) for name in CONSTRAINING))

    @property
    def giving_setting(self) -> str | None:
        """The name of the setting that gives parts of the answer; None if none does."""
        return next((name for name in GIVING if getattr(self, name) not in (None, "", ())), None)

    @field_validator("given_parts", mode="before")
    @classmethod
    def _objects_as_parts(cls, value: Any) -> Any:
        return parse_given_parts(value)

    @field_validator("bad_words", "guided_choice", "stop_token_ids", "draft", mode="before")
    @classmethod
    def _list_as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("bad_words")
    @classmethod
    def _words_are_not_blank(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(word.strip(" ") for word in value):
            raise ValueError("got a word without characters; leave it out")
        if sum(map(len, value)) > MAX_BAD_WORDS_CHARS:
            raise ValueError(
                f"got {sum(map(len, value))} characters in all; allowed: {MAX_BAD_WORDS_CHARS}; leave some out"
            )
        return value

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _ids_from_text(cls, value: Any) -> Any:
        return numbers_from_text(value)

    @field_validator("guided_json", "guided_structural_tag", mode="before")
    @classmethod
    def _schema_as_text(cls, value: Any) -> Any:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value

    @field_validator("guided_structural_tag")
    @classmethod
    def _check_structural_tag(cls, value: str | None) -> str | None:
        if value is not None:
            StructuralTag.parse(value)
        return value

    def conflicts(self) -> Iterator[Conflict]:
        """Settings that contradict each other or the decoder; the first one is the error."""
        for name, why in self.refused.items():
            value = getattr(self, name)
            if self.is_changed(name) and value not in ((), "") and not (name == "top_p" and value == 1.0):
                # An answer's text may be long.
                got = "" if name in (*GUIDED, *OF_ANSWER) else f"got {value!r} "
                yield name, f": {got}with decoder {self.decoder}: {why.format(name)}"
        given = [name for name in GUIDED if getattr(self, name) is not None]
        if len(given) > 1:
            yield given[0], f": got {' and '.join(given)}; allowed: one of them; leave the others out"
        if given and self.ignore_eos:
            why = "whose answers end where the match does; leave ignore_eos out"
            yield "ignore_eos", f": got true with a pattern or schema ({given[0]}), {why}"
        if self.given_parts and self.suffix:
            why = "which also say what stands after a hole; leave one of them out"
            yield "suffix", f": got one with given_parts, {why}"
        if self.min_tokens > self.max_new_tokens:
            yield (
                "min_tokens",
                f" ({self.min_tokens}) exceeds max_new_tokens ({self.max_new_tokens}); lower it",
            )

    def is_changed(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    @model_validator(mode="after")
    def _nothing_conflicts(self) -> Self:
        for setting, message in self.conflicts():
            raise SettingsError(setting + message, setting=setting)
        return self
