"""What a checkpoint's `generation_config.json` says of sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.json_file import read_json

GENERATION = "generation_config.json"
_SAMPLING = ("temperature", "top_p", "top_k")


def read_generation_defaults(folder: Path) -> dict[str, Any]:
    """The sampling settings that the checkpoint recommends, by the names of `GenerationSettings`.

    As transformers reads them: without `do_sample` decoding is greedy, whatever the temperature. Settings that the
    file does not name are left out. Raises CheckpointError, naming the file, for one that cannot be used.
    """
    file = folder / GENERATION
    if not file.exists():
        return {}
    named = read_json(file)
    if not named.keys() & {"do_sample", "repetition_penalty"}:
        return {}  # most files name token ids only: without what it takes to import transformers
    from transformers import GenerationConfig

    try:
        found = GenerationConfig.from_pretrained(folder)
    except ValueError as error:
        raise CheckpointError(
            f"{file}: {error}; correct it, or set model.generation_config to none"
        ) from None
    defaults = {}
    if found.do_sample:
        defaults = {name: getattr(found, name) for name in _SAMPLING if named.get(name) is not None}
        defaults.setdefault("temperature", 1.0)
        if defaults.get("top_k") == 0:  # off
            del defaults["top_k"]
    if named.get("repetition_penalty") is not None:
        defaults["repetition_penalty"] = found.repetition_penalty
    return {
        name: float(value) if name != "top_k" and type(value) is int else value
        for name, value in defaults.items()
    }
