"""One YAML file → one object: the model, the decode group and the default decode settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator

from lopa_ray.config.decision_settings import DecisionSettings
from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.yaml_files import read_config
from lopa_ray.decoding.decoders import merge_decoder_settings, parse_decoder_settings, register_decoder
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.errors import SettingsError


class Config(ExecutionConfig):
    """All settings of one YAML file."""

    decode: GenerationSettings = Field(default_factory=LopaSettings)
    """Decode settings of requests that do not set them."""

    decisions: DecisionSettings = Field(default_factory=DecisionSettings)
    """Settings of decisions that do not set them."""

    @field_validator("decode", mode="before")
    @classmethod
    def _choose_decoder(cls, value: Any) -> Any:
        return parse_decoder_settings(value) if isinstance(value, dict) else value

    def as_dict(self) -> dict[str, Any]:
        """Every section as plain values."""
        return {name: getattr(self, name).model_dump(mode="json") for name in type(self).model_fields}

    def without_open_settings(self) -> dict[str, Any]:
        """The dict of `as_dict`, without decode settings that were not set and may have defaults in a checkpoint."""
        values = self.as_dict()
        if self.model.generation_config == "auto":
            for name in {*self.decode.recommended_by_checkpoints} - self.decode.model_fields_set:
                values["decode"].pop(name, None)
        return values

    def given(self) -> dict[str, Any]:
        """The values that were set, from which `parse` makes the same configuration; checkpoints may set the others."""
        sections = ("model", "group", "decisions")
        values = {name: getattr(self, name).model_dump(mode="json", exclude_unset=True) for name in sections}
        return {**values, "decode": self.decode.given("json")}

    def with_decode_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """The same, with a checkpoint's `defaults` for decode settings that were not set, where the decoder takes them.
        Raises SettingsError for a wrong value."""
        open_settings = {*self.decode.recommended_by_checkpoints} - self.decode.model_fields_set
        unset = {name: value for name, value in defaults.items() if name in open_settings}
        return self.replace(decode=self.decode.replace(**unset)) if unset else self

    def with_decision_defaults(self, defaults: DecisionSettings) -> Self:
        """The same, with a checkpoint's settings of decisions in place of null."""
        return self.replace(decisions=self.decisions.with_defaults(defaults)) if defaults.given() else self

    @classmethod
    def load(cls, source: str | Path, overrides: dict[str, dict[str, Any]] | None = None) -> Self:
        """Read a YAML file, or the preset of that name, with `overrides` (section → values) on top. Raises
        SettingsError if there is none, it is not a YAML mapping, or a value is refused, and names a file whose own
        values are refused."""
        values = read_config(source)
        try:
            return cls.parse(values, overrides)
        except SettingsError:
            if Path(source).is_file():
                try:
                    cls.parse(values)  # are they refused without any change of them?
                except SettingsError as error:
                    raise SettingsError(f"{source}: {error}", setting=error.setting) from None
            raise

    @classmethod
    def parse(cls, values: dict[str, Any], overrides: dict[str, dict[str, Any]] | None = None) -> Self:
        """Parse plain values, as a YAML file has them, with `overrides` on top. Raises SettingsError."""
        for mapping in (values, *values.values()):
            for key in mapping if isinstance(mapping, dict) else ():
                if not isinstance(key, str):
                    raise SettingsError(f"got {key!r} as the name of a setting; allowed: text")
        for sections in (values, overrides or {}):  # unlike requests, which name registered decoders alone
            decode = sections.get("decode")
            register_decoder(decode.get("decoder") if isinstance(decode, dict) else None)
        # An empty section is one without settings.
        values = {section: value for section, value in values.items() if value is not None}
        for section, changed in (overrides or {}).items():
            current = values.get(section) or {}
            if not isinstance(current, dict):
                raise SettingsError(f"{section}: got {current!r}; allowed: a mapping of settings")
            both = {**current, **changed}
            if section == "decode":  # on a command line a preset's settings are not to blame
                both = merge_decoder_settings(current, changed, drops_refused=True)
            values[section] = both
        return cls(**values)
