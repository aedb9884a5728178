"""The settings of requests that set nothing, for the playground and other clients."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cluster.serving.protocol.messages import ModelDefaults
from lopa_ray.decoding.decoders import DECODERS, override_settings
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.execution.model_files import DEMO

_WITHOUT_DRAFTS = {"lookahead": "lopa", "acceptance": "exact"}  # for decoders without verified lookahead


def request_defaults(model: str, config: Config) -> ModelDefaults:
    """`config`: of a running engine, so that it has the sampling settings of the checkpoint."""
    settings, refused, accepted_with = {}, {}, {}
    given = config.decode.model_dump()
    needed = {name: value for name, value in _WITHOUT_DRAFTS.items() if given.get(name, value) != value}
    for name in DECODERS:
        try:
            settings[name] = _settings_of(config, {"decoder": name})
        except SettingsError as error:
            refused[name] = str(error)
            with suppress(SettingsError):
                settings[name] = _settings_of(config, {"decoder": name, **needed})
                accepted_with[name] = needed
    return ModelDefaults(
        object="model.defaults",
        model=model,
        decoder=config.decode.decoder,
        settings=settings,
        refused=refused,
        accepted_with=accepted_with,
        max_model_len=config.model.max_model_len,
        is_demo_model=config.model.path == DEMO and config.model.lora is None,
    )


def _settings_of(config: Config, request: dict[str, Any]) -> dict[str, Any]:
    settings = override_settings(config.decode, request)
    return settings.model_dump(mode="json", exclude={"decoder", *settings.refused})
