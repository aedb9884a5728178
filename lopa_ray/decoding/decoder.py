"""Decoder: a value of the setting `decoder`, and all that others ask about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.session import DecodeSession

SHORT: dict[str, Any] = {"max_new_tokens": 24, "confidence_threshold": 0.6, "stop_at_eos": False}
"""Settings of a short request that takes several steps, for `Decoder.smallest`."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder, as its file declares it. `settings` say what they refuse; see `GenerationSettings.refused`."""

    session: type[DecodeSession]
    smallest: GenerationSettings  # a short request with steps of the kinds that the decoder has, for tests

    @property
    def settings(self) -> type[GenerationSettings]:
        return type(self.smallest)

    @property
    def name(self) -> str:
        return self.smallest.decoder

    @property
    def fills_masks(self) -> bool:
        """Whether it is for models with a mask token."""
        return not self.session.denoises_canvases

    def takes(self, setting: str) -> bool:
        """Whether the decoder has a place for another value of a setting than the default."""
        return setting in self.settings.model_fields and setting not in self.smallest.refused

    @property
    def verifies_drafts(self) -> bool:
        """Whether it has verified lookahead."""
        return issubclass(self.settings, LookaheadSettings) and self.takes("lookahead")
