"""Sampling settings in a checkpoint's `generation_config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.json_file import read_json
from lopa_ray.model.transformers_package import import_transformers

GENERATION = "generation_config.json"

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "repetition_penalty")
"""Decode settings that a checkpoint may have a default for."""


def read_generation_defaults(folder: Path) -> dict[str, Any]:
    """The sampling settings that the checkpoint in `folder` recommends, of `SAMPLING_DEFAULTS`.

    As transformers reads them: without `do_sample` decoding is greedy, whatever the temperature. Settings that the
    file does not name are left out. Raises CheckpointError, naming the file, for one that cannot be used.
    """
    file = folder / GENERATION
    raw = read_json(file) if file.exists() else {}
    relevant = SAMPLING_DEFAULTS if raw.get("do_sample") else ("repetition_penalty",)
    named = {name: raw[name] for name in relevant if raw.get(name) is not None}
    if not raw.get("do_sample") and not named:
        return {}  # most files name token ids only: without what it takes to import transformers
    try:
        generation_config = import_transformers().GenerationConfig(
            do_sample=bool(raw.get("do_sample")), **named
        )
    except Exception as error:  # its checks raise all kinds
        raise CheckpointError(
            f"{file}: {error}; correct it, or set model.generation_config to none"
        ) from None
    defaults = {name: getattr(generation_config, name) for name in named}
    if generation_config.do_sample:
        defaults.setdefault("temperature", 1.0)
    if defaults.get("top_k") == 0:  # off
        del defaults["top_k"]
    return {
        name: float(value) if name != "top_k" and type(value) is int else value
        for name, value in defaults.items()
    }
