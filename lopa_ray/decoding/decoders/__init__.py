"""The decoders: one file, one subclass of `DecodeSession` each."""

from __future__ import annotations

from collections.abc import Sequence

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSession
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSession
from lopa_ray.decoding.decoders.lopa import LopaSession
from lopa_ray.decoding.decoders.vanilla import VanillaSession
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.vocabulary import Vocabulary

DECODERS: dict[str, type[DecodeSession]] = {
    "lopa": LopaSession,
    "d2f": LopaSession,
    "vanilla": VanillaSession,
    "fast_dllm": FastDllmSession,
    "block_diffusion": BlockDiffusionSession,
}
"""The value of the setting `decoder` → its session."""


def new_session(
    prompt: Sequence[int],
    settings: GenerationSettings,
    vocabulary: Vocabulary,
    constraint: Constraint | None = None,
) -> DecodeSession:
    """The session of the decoder that the settings name. Raises what `DecodeSession` raises."""
    return DECODERS[settings.decoder](prompt, settings, vocabulary, constraint)
