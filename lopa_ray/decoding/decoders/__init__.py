"""The decoders: a file declares each, with its settings and its session; `DECODERS` lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.decoding.decoders.block_diffusion import BLOCK_DIFFUSION
from lopa_ray.decoding.decoders.dmax import DMAX
from lopa_ray.decoding.decoders.editing import EDITING
from lopa_ray.decoding.decoders.fast_dllm import FAST_DLLM
from lopa_ray.decoding.decoders.lopa import D2F, LOPA
from lopa_ray.decoding.decoders.multi_block import MULTI_BLOCK
from lopa_ray.decoding.decoders.nemotron import NEMOTRON
from lopa_ray.decoding.decoders.renoising import RENOISING
from lopa_ray.decoding.decoders.self_speculation import SELF_SPECULATION
from lopa_ray.decoding.decoders.vanilla import VANILLA
from lopa_ray.decoding.filling_session import FillingSession
from lopa_ray.decoding.given_tokens import GivenTokens
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.verified.verified_session import VerifiedSession
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.vocabulary import Vocabulary

DECODERS = {
    decoder.name: decoder
    for decoder in (
        LOPA,
        D2F,
        VANILLA,
        FAST_DLLM,
        BLOCK_DIFFUSION,
        EDITING,
        DMAX,
        MULTI_BLOCK,
        NEMOTRON,
        SELF_SPECULATION,
        RENOISING,
    )
}
"""The value of the setting `decoder` → what its file declares."""


def new_session(
    prompt: Sequence[int],
    settings: GenerationSettings,
    vocabulary: Vocabulary,
    constraint: Constraint | None = None,
    given: GivenTokens | None = None,
) -> DecodeSession:
    """The session of the decoder that the settings name. Raises what `DecodeSession` raises."""
    session = DECODERS[settings.decoder].session.variant(settings)
    if isinstance(settings, LookaheadSettings) and settings.is_verified:
        inner = session(prompt, settings.of_one_branch(), vocabulary, constraint, given)
        assert isinstance(inner, FillingSession)
        return VerifiedSession(inner, settings)
    return session(prompt, settings, vocabulary, constraint, given)


def parse_decoder_settings(values: dict[str, Any]) -> GenerationSettings:
    """Settings of a decoder from plain values; `decoder` (default lopa) chooses the class. Raises SettingsError for an
    unknown decoder and for whatever its class refuses."""
    name = values.get("decoder", "lopa")
    if not isinstance(name, str) or name not in DECODERS:
        allowed = f"{', '.join(DECODERS)}; choose one of these"
        raise SettingsError(f"decoder: got {name!r}; allowed: {allowed}", setting="decoder")
    settings = DECODERS[name].settings
    for key in (key for key in values if key not in settings.model_fields):
        others = [other for other, decoder in DECODERS.items() if key in decoder.settings.model_fields]
        if others:
            raise SettingsError(
                f"unknown setting {key} = {values[key]!r} for decoder {name}; decoders with it: "
                f"{', '.join(others)}; set decoder to one of these, or leave {key} out",
                setting=key,
            )
    return settings(**values)


def merge_decoder_settings(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `overrides` on top. When these switch to another decoder, values are dropped that it does not know,
    or has another default for: they were meant for the decoder before."""
    old = values.get("decoder", "lopa")
    new = overrides.get("decoder", old)
    if old != new and all(isinstance(name, str) and name in DECODERS for name in (old, new)):
        old_fields, new_fields = (DECODERS[name].settings.model_fields for name in (old, new))
        values = {
            key: value
            for key, value in values.items()
            if key in old_fields and key in new_fields and new_fields[key].default == old_fields[key].default
        }
    return {**values, **overrides}


def override_settings(settings: GenerationSettings, overrides: Mapping[str, Any]) -> GenerationSettings:
    """`settings` with plain values on top, which may choose another decoder. Raises SettingsError."""
    return parse_decoder_settings(merge_decoder_settings(settings.given(), overrides))
