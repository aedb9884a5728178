"""Opens the model of a configuration, in the process of an engine.

Workers get a `ModelSpec`: the pinned configuration and the `ModelConfig`. So they read only the weights of a
checkpoint, and later workers load the same weights. The first worker of a group measures what `model.attention` auto
stands for (`resolve_auto`). Importing torch takes longer than the rest of a group's start, so engines and masters leave
it to functions that workers call.
"""

from __future__ import annotations

from lopa_ray.decisions.defaults import read_decision_defaults
from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError, SettingsError
from lopa_ray.execution.model_files import checkpoint_folder, pin_model
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.checkpoint.generation_defaults import GENERATION, read_generation_defaults
from lopa_ray.text.template_process import TEMPLATE_PROCESS
from lopa_ray.text.tokenizer import Tokenizer


def open_model(config: Config) -> tuple[Config, ModelSpec, Tokenizer | None]:
    """A configuration as `resolve_config` gives it, and its checkpoint's spec and tokenizer. Raises CheckpointError."""
    config = resolve_config(config)
    spec = ModelSpec.read(config)
    tokenizer = Tokenizer.from_pretrained(checkpoint_folder(config.model))
    if tokenizer is not None and tokenizer.has_chat_template:
        TEMPLATE_PROCESS.start()
    return config, spec.with_tokenizer(tokenizer), tokenizer


def resolve_config(config: Config) -> Config:
    """The configuration with names on the Hub as commits, and the checkpoint's settings of sampling and of decisions
    where it has none. Raises CheckpointError."""
    config = pin_model(config)
    folder = checkpoint_folder(config.model)
    config = config.with_decision_defaults(read_decision_defaults(folder).settings)
    if config.model.generation_config == "none":
        return config
    try:
        return config.with_decode_defaults(read_generation_defaults(folder))
    except SettingsError as error:
        remedy = "correct it, or set model.generation_config to none"
        raise CheckpointError(f"{folder / GENERATION}: {error}; {remedy}") from None
