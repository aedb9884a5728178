"""From a configuration to its model, in the process of an engine.

`pin_model` turns names on the Hub into commits, `resolve_config` adds the checkpoint's sampling settings and those of
decisions, and
`open_model` reads configuration and tokenizer. Workers get a `ModelSpec`: the pinned configuration and the
`ModelConfig`. So they read only the weights of a checkpoint, and later workers load the same ones. The first worker
of a group measures what `model.attention` auto stands for (`resolve_auto`), and the master sends it to the others.

Importing torch takes longer than the rest of a group's start, so engines and masters leave it to functions that
workers call.
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
    """A configuration as `resolve_config` gives it, and its checkpoint's spec and tokenizer (None if there is none).

    Raises CheckpointError.
    """
    config = resolve_config(config)
    spec = ModelSpec.read(config)
    tokenizer = Tokenizer.from_pretrained(checkpoint_folder(config.model))
    if tokenizer is not None and tokenizer.has_chat_template:
        TEMPLATE_PROCESS.start()
    return config, spec.with_tokenizer(tokenizer), tokenizer


def resolve_config(config: Config) -> Config:
    """The same configuration with pinned names, in which missing settings of sampling and of decisions are those of
    the checkpoint.

    Raises CheckpointError.
    """
    config = pin_model(config)
    config = config.with_decision_defaults(read_decision_defaults(checkpoint_folder(config.model)).settings)
    if config.model.generation_config == "none":
        return config
    folder = checkpoint_folder(config.model)
    try:
        return config.with_decode_defaults(read_generation_defaults(folder))
    except SettingsError as error:
        raise CheckpointError(
            f"{folder / GENERATION}: {error}; correct it, or set model.generation_config to none"
        ) from None
