"""PublishedFamily: what all families declare of their published checkpoints, whatever runs these."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lopa_ray.model.config_json.special_tokens import Json
from lopa_ray.model.families.published_checkpoint import PublishedCheckpoint

_log = logging.getLogger("lopa.model")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFamily:
    """A family, which its config.json names by `model_type` and `architecture`. `shifted`: row p - 1 of the logits
    decides position p. `mask_token_id` is the mask token of the published code where configurations do not name it.
    `marks` are values that its config.json has beside these, where other models have the same type.
    `config_defaults` holds what the published code assumes where a published key is absent or null. `checked_against`
    says what results were compared with, for people to read."""

    name: str
    model_type: str
    architecture: str
    shifted: bool
    checked_against: str
    checkpoints: tuple[PublishedCheckpoint, ...] = ()
    mask_token_id: int | None = None
    marks: Mapping[str, object] = field(default_factory=dict)
    config_defaults: Mapping[str, object] = field(default_factory=dict)

    def claims(self, raw: Json) -> bool:
        """Whether config.json `raw` is of this family. `model_type` and `architectures` must agree: a Dream body under
        another head has the same model type and would load, but mean something else. Either of the two may be absent
        (`note_assumed_type`)."""
        named = raw.get("model_type"), raw.get("architectures")
        if not self.marks.items() <= raw.items():
            return False
        return any(named) and named[0] in (self.model_type, None) and named[1] in ([self.architecture], None)

    def note_assumed_type(self, raw: Json, where: str) -> None:
        """Warn, once per file, if config.json `raw` leaves out `model_type` or `architectures`."""
        absent = [key for key in ("model_type", "architectures") if not raw.get(key)]
        if absent:
            _warn_once(
                f"{where}: it names no {absent[0]}, and is read as model_type {self.model_type!r} with architectures "
                f"[{self.architecture!r}]; add {absent[0]} to the file if this is right"
            )


def known_types(families: Iterable[PublishedFamily]) -> str:
    return ", ".join(f"{family.model_type!r} with [{family.architecture!r}]" for family in families)


@functools.cache
def _warn_once(message: str) -> None:
    _log.warning("%s", message)
