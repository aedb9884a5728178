"""Hypothesis strategies: any settings of each decoder, any prompt and any fake model; other values than defaults."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.blockwise import BlockwiseSession
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import BlockSettings, D2FSettings, LopaSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.history import HistorySettings
from lopa_ray.decoding.lookahead_settings import OF_FORKS, LookaheadSettings
from lopa_ray.decoding.session import SAMPLING_SETTINGS
from lopa_ray.errors import SettingsError
from support.fake_model import VOCABULARY, FakeModel

MASK, EOS = VOCABULARY.mask_token_id, VOCABULARY.eos_token_id
PROBABILITIES = st.floats(0, 1).map(lambda x: round(x, 2))
PROMPTS = st.lists(st.integers(0, EOS), min_size=1, max_size=7)
FAKE_MODELS = st.builds(
    FakeModel,
    seed=st.integers(0, 2**16),
    eos_probability=st.sampled_from([0.0, 0.05, 0.3]),
    levels=st.sampled_from([3, 1000]),
    probability_exponent=st.sampled_from([0.3, 1.0, 3.0]),
)


TOKENS = st.integers(0, EOS)
PENALTIES = st.sampled_from(
    [
        {},
        {},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 0.5, "presence_penalty": -1.0},
        {"repetition_penalty": 0.8, "frequency_penalty": -0.1, "presence_penalty": 2.0},
    ]
)
LOGIT_BIASES = st.one_of(st.just({}), st.dictionaries(TOKENS, st.floats(-100, 100), max_size=4))


@st.composite
def common_settings(draw: st.DrawFn) -> dict[str, object]:
    """Settings that all decoders share."""
    length = draw(st.integers(1, 40))
    return {
        "max_new_tokens": length,
        "min_tokens": draw(st.integers(0, length)),
        "ignore_eos": draw(st.booleans()),
        "stop_at_eos": draw(st.booleans()),
        **draw(PENALTIES),
        "logit_bias": draw(LOGIT_BIASES),
        "ranking": draw(st.sampled_from(["probability", "margin", "neg_entropy"])),
        "top_logprobs": draw(st.sampled_from([0, 2])),
        "confidence_threshold": draw(PROBABILITIES),
        "block_size": draw(st.integers(1, 17)),
    }


@st.composite
def lookahead_settings(draw: st.DrawFn) -> dict[str, object]:
    """Settings of lookahead with forks that compete, also without it."""
    fields = LookaheadSettings.model_fields
    return {
        **{name: draw(any_value(fields[name])) for name in OF_FORKS},
        "num_branches": draw(st.integers(1, 6)),
        "branch_confidence": draw(st.sampled_from(["mean", "bottom(0.3)", "bottom(0)", "bottom(1)"])),
    }


@st.composite
def credit_settings(draw: st.DrawFn) -> dict[str, object]:
    """Settings of credit, mostly without it."""
    fields = HistorySettings.model_fields
    return {
        "credit_alpha": draw(st.sampled_from([0.0, 0.0, 0.7, 8.0])),
        **{name: draw(any_value(fields[name])) for name in ("boost_gamma", "decay_beta")},
    }


@st.composite
def any_lopa_or_d2f(draw: st.DrawFn) -> BlockSettings:
    """Every decoder on a canvas of blocks."""
    common = draw(common_settings()) | {
        "block_add_threshold": draw(PROBABILITIES),
        "decoded_token_threshold": draw(PROBABILITIES),
        "window_attention": draw(st.sampled_from(["full", "block_causal", "tiled"])),
    }
    if draw(st.integers(0, 4)) == 0:
        return D2FSettings(**common)
    return LopaSettings(**draw(lookahead_settings()), **common)


@st.composite
def any_vanilla(draw: st.DrawFn) -> VanillaSettings:
    """Every rule, by blocks or not."""
    common = draw(common_settings()) | draw(lookahead_settings())
    del common["confidence_threshold"]
    if draw(st.booleans()):
        del common["block_size"]
    remasking = draw(st.sampled_from(["low_confidence", "low_confidence", "random", "origin"]))
    if remasking == "low_confidence":
        common["alg_temp"] = draw(st.sampled_from([0.0, 0.5]))
    blocks = VanillaSettings(**common).num_blocks
    steps = draw(st.sampled_from([None, 1, 2, 5]))
    return VanillaSettings(
        remasking=remasking,
        steps=None if steps is None else blocks * steps,
        seed=draw(st.integers(0, 9)),
        **common,
    )


@st.composite
def any_fast_dllm(draw: st.DrawFn) -> FastDllmSettings:
    """Every cache and every `fill`, by one threshold or by two."""
    common = draw(common_settings()) | draw(lookahead_settings()) | draw(credit_settings())
    common["cache"] = draw(st.sampled_from(["none", "prefix", "dual"]))
    fill = draw(st.sampled_from(["threshold", "threshold", "factor", "schedule"]))
    blocks = FastDllmSettings(**common).num_blocks
    if fill == "factor":
        return FastDllmSettings(fill=fill, factor=draw(st.sampled_from([0.5, 1.0, 3.0])), **common)
    has_schedule = fill == "schedule" or draw(st.booleans())
    if fill == "threshold" and draw(st.booleans()):
        common["relaxed_threshold"] = draw(st.sampled_from([0.0, 0.3, 1.0]))
        common["anchor_radius"] = draw(st.integers(0, 4))
    return FastDllmSettings(
        fill=fill, steps=blocks * draw(st.integers(2, 6)) if has_schedule else None, **common
    )


@st.composite
def any_block_diffusion(draw: st.DrawFn) -> BlockDiffusionSettings:
    """Every rule, with more and fewer passes than positions."""
    common = draw(common_settings()) | draw(lookahead_settings()) | draw(credit_settings())
    size = draw(st.integers(1, 17))
    common["block_size"] = size
    rules = ["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"]
    remasking = draw(st.sampled_from(rules))
    if remasking == "entropy_bounded":
        del common["ranking"]
    sub_blocks = draw(st.sampled_from([None, *(part for part in range(1, size + 1) if size % part == 0)]))
    return BlockDiffusionSettings(
        remasking=remasking,
        denoising_steps=draw(st.sampled_from([None, 1, 3, 20])),
        eb_threshold=draw(st.sampled_from([0.0, 0.5, 4.0])),
        fuse_store=sub_blocks is None and draw(st.booleans()),
        sub_block_size=sub_blocks,
        sub_block_cache=sub_blocks is not None and draw(st.booleans()),
        **common,
    )


@st.composite
def any_nemotron(draw: st.DrawFn) -> NemotronSettings:
    """By threshold and one position per call, behind a causal context and a full one. Without a thinking budget."""
    common = draw(common_settings()) | draw(lookahead_settings())
    common["confidence_threshold"] = draw(st.one_of(st.none(), PROBABILITIES))
    return NemotronSettings(causal_context=draw(st.booleans()), **common)


OWN_STRATEGIES = {
    "lopa": any_lopa_or_d2f(),
    "d2f": any_lopa_or_d2f(),
    "vanilla": any_vanilla(),
    "fast_dllm": any_fast_dllm(),
    "block_diffusion": any_block_diffusion(),
    "nemotron": any_nemotron(),
}
"""Of decoders whose settings depend on each other so much that few drawn one by one would stand together."""


@st.composite
def settings_by_field(draw: st.DrawFn, name: str) -> GenerationSettings:
    """Settings of a decoder, each drawn by its type and bounds. What does not fit others is left out."""
    decoder = DECODERS[name]
    values = draw(common_settings())
    if issubclass(decoder.settings, LookaheadSettings):
        values |= draw(lookahead_settings())
    own = decoder.settings.model_fields.keys() - LookaheadSettings.model_fields.keys() - values.keys()
    values |= {field: draw(any_value(decoder.settings.model_fields[field])) for field in own}
    fields = {field: value for field, value in values.items() if decoder.takes(field)}
    while True:
        try:
            return decoder.settings(**fields)
        except SettingsError as error:
            del fields[error.setting]


def any_value(field: FieldInfo) -> st.SearchStrategy[object]:
    """The default of a setting, or another value if it is a flag, one of several names, or a number, or None where it
    may be."""
    kinds = [*get_args(field.annotation)] if get_origin(field.annotation) in (Union, UnionType) else []
    kinds = kinds or [field.annotation]
    least = next((int(bound.ge) for bound in field.metadata if isinstance(bound, Ge)), 1)
    most = min([least + 6, *(int(bound.le) for bound in field.metadata if isinstance(bound, Le))])
    strategies = {
        bool: st.booleans(),
        int: st.integers(least, most),
        float: PROBABILITIES.filter(bool),
        NoneType: st.none(),
    }
    return st.one_of(
        st.just(field.default),
        *(
            st.sampled_from(get_args(kind)) if get_origin(kind) is Literal else strategies[kind]
            for kind in kinds
            if get_origin(kind) is Literal or kind in strategies
        ),
    )


def any_settings(name: str) -> st.SearchStrategy[GenerationSettings]:
    """Any settings of a decoder that fills masks."""
    return OWN_STRATEGIES[name] if name in OWN_STRATEGIES else settings_by_field(name)


def _any_of(decoders: Iterable[Decoder]) -> st.SearchStrategy[GenerationSettings]:
    return st.one_of([any_settings(decoder.name) for decoder in decoders if decoder.name != "d2f"])


FILLING = [decoder for decoder in DECODERS.values() if decoder.fills_masks]
BLOCKWISE_SETTINGS = _any_of(
    decoder
    for decoder in FILLING
    if issubclass(decoder.session, BlockwiseSession)
    and issubclass(decoder.settings, LookaheadSettings)
    and decoder.takes("num_branches")
)
ANY_SETTINGS = _any_of(FILLING)


NUMBERS = {int: 3, int | None: 3, float: 0.5, float | None: 0.5}
OTHER_VALUES: dict[str, Any] = {
    name: NUMBERS[field.annotation]
    for name, field in GenerationSettings.model_fields.items()
    if field.annotation in NUMBERS
} | {
    "stop_token_ids": (3,),
    "logit_bias": {3: 1.0},
    "ranking": "margin",
    "guided_regex": "a+",
    "guided_choice": ("a", "b"),
    "guided_json": "{}",
    "guided_structural_tag": '{"structures": [{"begin": "<", "schema": {}, "end": ">"}], "triggers": ["<"]}',
    "bad_words": ("a",),
    "given_parts": [{"token_ids": [1]}],
    "suffix": "x",
    "draft": (1,),
}
"""Other values than the defaults, of settings that all decoders have."""
SAMPLING_VALUES = {name: OTHER_VALUES[name] for name in SAMPLING_SETTINGS}
