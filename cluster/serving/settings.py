"""Settings of a server: its models, and where its keys are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from cluster.serving.http.api_keys import load_api_keys
from cluster.serving.http.http_settings import HttpSettings
from lopa_ray.config.strict import StrictModel
from lopa_ray.engine.config import Config


class ModelEntry(StrictModel):
    """One model that is served, on groups of its own."""

    id: str = Field(min_length=1)
    """The name that requests have in `model`."""

    config: str = "demo"
    """Preset, or YAML file of a decode group that every node can read."""

    model: dict[str, Any] = Field(default_factory=dict)
    """Changes of the file's section `model`."""

    group: dict[str, Any] = Field(default_factory=dict)
    """Changes of the file's section `group`."""

    decode: dict[str, Any] = Field(default_factory=dict)
    """Changes of the file's section `decode`: the settings of requests that do not set them."""

    decisions: dict[str, Any] = Field(default_factory=dict)
    """Changes of the file's section `decisions`."""

    @property
    def deployment(self) -> str:
        return re.sub(r"[^A-Za-z0-9_.-]", "-", self.id)

    def load(self) -> Config:
        """The group's configuration. Raises SettingsError."""
        sections = {name: getattr(self, name) for name in Config.model_fields}
        return Config.load(self.config, sections)


class ServeSettings(StrictModel):
    """The arguments of the Serve application."""

    models: list[ModelEntry] = Field(default_factory=lambda: [ModelEntry(id="demo")], min_length=1)
    """The served models."""

    http: HttpSettings = Field(default_factory=HttpSettings)
    """Keys and limits of the HTTP layer."""

    api_keys_file: str | None = None
    """File with one API key per line, on the node of the ingress. The environment variable LOPA_API_KEYS
    (with commas between keys) adds to it. Without both no key is needed."""

    admin_keys_file: str | None = None
    """File with the keys for /admin, in the same form. Without it weights cannot be changed over HTTP."""

    def http_with_keys(self, environ: Mapping[str, str]) -> HttpSettings:
        """`http` with all keys. Raises SettingsError."""
        keys, admin_keys = load_api_keys(self.api_keys_file, environ), load_api_keys(self.admin_keys_file, {})
        return self.http.replace(api_keys=keys, admin_keys=admin_keys)

    @field_validator("http", mode="before")
    @classmethod
    def _check_no_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.keys() & {"api_keys", "admin_keys"}:
            raise ValueError(
                "keys are not allowed in a Serve config, which every user of the cluster can read; use "
                "api_keys_file, admin_keys_file or the environment variable LOPA_API_KEYS"
            )
        return value

    @model_validator(mode="after")
    def _check_distinct_names(self) -> Self:
        for kind in ("id", "deployment"):
            names = [getattr(entry, kind) for entry in self.models]
            duplicates = sorted({name for name in names if names.count(name) > 1})
            if duplicates:
                raise ValueError(f"models: got two with the {kind} {duplicates[0]!r}; each needs its own")
        return self
