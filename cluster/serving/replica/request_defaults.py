"""What requests to a model get where they set nothing."""

from __future__ import annotations

from cluster.serving.backend import RequestDefaults
from lopa_ray.decoding.decoders import DECODERS, override_settings
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.execution.model_files import DEMO


def request_defaults(config: Config) -> RequestDefaults:
    """`config`: of a running engine, so that it has the sampling settings of the checkpoint."""
    settings, refused = {}, {}
    for name in DECODERS:
        try:
            of_decoder = override_settings(config.decode, {"decoder": name})
        except SettingsError as error:
            refused[name] = str(error)
        else:
            settings[name] = of_decoder.model_dump(mode="json", exclude={"decoder"})
    return RequestDefaults(
        decoder=config.decode.decoder,
        settings=settings,
        refused=refused,
        max_model_len=config.model.max_model_len,
        is_demo_model=config.model.path == DEMO and config.model.lora is None,
    )
