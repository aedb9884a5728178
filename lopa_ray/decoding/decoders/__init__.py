"""The decoders: a file declares each, with its settings and its session; `DECODERS` lists them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, get_type_hints

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.decoders.block_diffusion import BLOCK_DIFFUSION
from lopa_ray.decoding.decoders.dmax import DMAX
from lopa_ray.decoding.decoders.editing import EDITING
from lopa_ray.decoding.decoders.fast_dllm import FAST_DLLM
from lopa_ray.decoding.decoders.indel import INDEL
from lopa_ray.decoding.decoders.klass import KLASS
from lopa_ray.decoding.decoders.lopa import D2F, LOPA
from lopa_ray.decoding.decoders.multi_block import MULTI_BLOCK
from lopa_ray.decoding.decoders.nemotron import NEMOTRON
from lopa_ray.decoding.decoders.renoising import RENOISING
from lopa_ray.decoding.decoders.s2d2 import S2D2, S2D2_D2F, S2D2_EDITING
from lopa_ray.decoding.decoders.self_speculation import SELF_SPECULATION
from lopa_ray.decoding.decoders.vanilla import VANILLA
from lopa_ray.decoding.decoders.wino import WINO
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
        KLASS,
        WINO,
        BLOCK_DIFFUSION,
        EDITING,
        INDEL,
        DMAX,
        MULTI_BLOCK,
        NEMOTRON,
        SELF_SPECULATION,
        S2D2,
        S2D2_EDITING,
        S2D2_D2F,
        RENOISING,
    )
}
"""The value of the setting `decoder` → what its file declares. Packages add decoders by the entry points
`lopa.decoders`, and configurations by `module:Class` (`register_decoder`)."""


def _name(decoder: Any) -> Any:
    """The name of a registered decoder that is named as `module:Class`; another value as it is."""
    if not isinstance(decoder, str) or ":" not in decoder:
        return decoder
    return next((name for name, one in DECODERS.items() if one.settings.source == decoder), decoder)


def register_decoder(source: Any) -> None:
    """Add a user's decoder, which a setting names as `module:Class`; another value changes nothing. The class is a
    subclass of `DecodeSession` whose annotation of `settings` names the settings' class, or a `Decoder`. The current
    folder is searched last, as by Ray's workers. Raises SettingsError for a name of something else, and for a decoder
    with the name of another one."""
    if not isinstance(source, str) or ":" not in source or _name(source) != source:
        return
    module, _, attribute = source.partition(":")
    if (folder := os.getcwd()) not in sys.path:
        sys.path.append(folder)
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"decoder: got {source!r}, but {error}; name a module and a class in it"
        ) from error
    if isinstance(found, type) and issubclass(found, DecodeSession):
        found = Decoder(found, get_type_hints(found)["settings"](max_new_tokens=24))
    if not isinstance(found, Decoder):
        raise SettingsError(
            f"decoder: got {source!r}, a {found!r}; allowed: a subclass of DecodeSession, or a Decoder"
        )
    if found.name in DECODERS:
        raise SettingsError(
            f"decoder: {source} has the name of another decoder, {found.name!r}; give it its own"
        )
    DECODERS[found.name] = found
    found.settings.source = source


for _entry_point in entry_points(group="lopa.decoders"):
    register_decoder(_entry_point.value)


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
    name = _name(values.get("decoder", "lopa"))
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
    return settings(**values | {"decoder": name})


def merge_decoder_settings(
    values: dict[str, Any], overrides: Mapping[str, Any], *, drops_refused: bool = False
) -> dict[str, Any]:
    """`values` with `overrides` on top. When these switch to another decoder, values are dropped that it does not know,
    or has another default for: they were meant for the decoder before. `drops_refused`: also values that it refuses,
    except the lookahead, without which answers could be others."""
    old = _name(values.get("decoder", "lopa"))
    new = _name(overrides.get("decoder", old))
    if old != new and all(isinstance(name, str) and name in DECODERS for name in (old, new)):
        old_fields, new_fields = (DECODERS[name].settings.model_fields for name in (old, new))
        values = {
            key: value
            for key, value in values.items()
            if key in old_fields and key in new_fields and new_fields[key].default == old_fields[key].default
            if not drops_refused or key == "lookahead" or DECODERS[new].takes(key)
        }
    return {**values, **overrides}


def override_settings(settings: GenerationSettings, overrides: Mapping[str, Any]) -> GenerationSettings:
    """`settings` with plain values on top, which may choose another decoder. Raises SettingsError."""
    return parse_decoder_settings(merge_decoder_settings(settings.given(), overrides))
