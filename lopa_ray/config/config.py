"""One YAML file → one object: the model, the decode group and the default decode settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from lopa_ray.config.decoder_settings import LopaSettings, merge_decoder_settings, parse_decoder_settings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.config.strict import StrictModel
from lopa_ray.config.yaml_files import read_config
from lopa_ray.errors import SettingsError
from lopa_ray.model.generation_defaults import SAMPLING_DEFAULTS


class Config(StrictModel):
    """All settings of one YAML file."""

    model: ModelSettings = Field(default_factory=ModelSettings)
    """The checkpoint."""

    group: GroupSettings = Field(default_factory=GroupSettings)
    """The decode group."""

    decode: GenerationSettings = Field(default_factory=LopaSettings)
    """Decode settings of requests that do not set them."""

    @field_validator("decode", mode="before")
    @classmethod
    def _choose_decoder(cls, value: Any) -> Any:
        return parse_decoder_settings(value) if isinstance(value, dict) else value

    @field_validator("model", "group", mode="before")
    @classmethod
    def _build_section(cls, value: Any, info: Any) -> Any:
        section = {"model": ModelSettings, "group": GroupSettings}[info.field_name]
        return section(**value) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _collectives_need_an_accelerator_each(self) -> Self:
        shared = self.model.device != "cpu" and self.group.num_accelerators < 1
        if shared and self.group.tensor_parallel_size > 1:
            raise ValueError(
                f"group.tensor_parallel_size {self.group.tensor_parallel_size} with num_accelerators "
                f"{self.group.num_accelerators}: shards that share an accelerator cannot form a collective; set "
                "num_accelerators to 1, or tensor_parallel_size to 1"
            )
        if shared and self.group.transfer == "collective":
            raise ValueError(
                f"group.transfer collective with num_accelerators {self.group.num_accelerators}: workers that share "
                "an accelerator cannot form a collective; use object_store or auto"
            )
        return self

    @model_validator(mode="after")
    def _shards_reserve_resources(self) -> Self:
        group = self.group
        reserved = [group.num_cpus, *group.resources.values()]
        if group.tensor_parallel_size > 1 and self.model.device == "cpu" and not any(reserved):
            raise ValueError(
                f"group.tensor_parallel_size {group.tensor_parallel_size} with num_cpus 0: shards need a reservation "
                "that keeps them on one node; set num_cpus above 0, or tensor_parallel_size to 1"
            )
        return self

    @model_validator(mode="after")
    def _shards_are_native(self) -> Self:
        size = self.group.tensor_parallel_size
        if size > 1 and self.model.implementation == "transformers":
            raise ValueError(
                f"group.tensor_parallel_size {size} with model.implementation transformers: only native models can be "
                "cut; set tensor_parallel_size to 1, or implementation to auto"
            )
        return self

    def as_dict(self) -> dict[str, Any]:
        """Every section as plain values."""
        return {name: getattr(self, name).model_dump(mode="json") for name in type(self).model_fields}

    def without_open_settings(self) -> dict[str, Any]:
        """As `as_dict`, without the decode settings that a checkpoint may have defaults for, if they were not set."""
        values = self.as_dict()
        if self.model.generation_config == "auto":
            for name in {*SAMPLING_DEFAULTS} - self.decode.model_fields_set:
                values["decode"].pop(name, None)
        return values

    def given(self) -> dict[str, Any]:
        """The values that were set, from which `parse` makes the same configuration: a checkpoint may have defaults
        for the others."""
        values = {
            name: getattr(self, name).model_dump(mode="json", exclude_unset=True)
            for name in type(self).model_fields
        }
        values["decode"]["decoder"] = self.decode.decoder
        return values

    def with_decode_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """The same, with `defaults` for decode settings that were not set. Raises SettingsError for a wrong value."""
        unset = {name: value for name, value in defaults.items() if name not in self.decode.model_fields_set}
        return self.replace(decode=self.decode.replace(**unset)) if unset else self

    @classmethod
    def load(cls, source: str | Path, overrides: dict[str, dict[str, Any]] | None = None) -> Self:
        """Read a YAML file, or the preset of that name, with `overrides` (section → values) on top.

        Raises SettingsError if there is no such file or preset, it is no YAML mapping, or a
        value is refused.
        """
        return cls.parse(read_config(source), overrides)

    @classmethod
    def parse(cls, values: dict[str, Any], overrides: dict[str, dict[str, Any]] | None = None) -> Self:
        """From plain values, as a YAML file has them, with `overrides` on top. Raises SettingsError."""
        for mapping in (values, *values.values()):
            for key in mapping if isinstance(mapping, dict) else ():
                if not isinstance(key, str):
                    raise SettingsError(f"got {key!r} as the name of a setting; allowed: text")
        # An empty section is one without settings.
        values = {section: value for section, value in values.items() if value is not None}
        for section, changed in (overrides or {}).items():
            current = values.get(section) or {}
            if not isinstance(current, dict):
                raise SettingsError(f"{section}: got {current!r}; allowed: a mapping of settings")
            values[section] = (
                merge_decoder_settings(current, changed) if section == "decode" else {**current, **changed}
            )
        return cls(**values)
