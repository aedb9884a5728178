"""Sampling settings in a checkpoint's `generation_config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lopa_ray.errors import CheckpointError
from lopa_ray.model.json_file import read_json
from lopa_ray.model.transformers_package import import_transformers

GENERATION = "generation_config.json"

_SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty")
"""Sampling settings of any model, under their names in transformers."""

_OF_CANVASES = (
    "max_denoising_steps",
    "t_min",
    "t_max",
    "stability_threshold",
    "confidence_threshold",
)
"""Settings of DiffusionGemma's decoder, under their names in transformers' `DiffusionGemmaGenerationConfig`."""


def read_generation_defaults(folder: Path) -> dict[str, Any]:
    """The decode settings that the checkpoint in `folder` recommends; a decoder takes those that it has a place for.

    As transformers reads them: without `do_sample` decoding is greedy, whatever the temperature. Settings that the
    file does not name are left out. Raises CheckpointError, naming the file, for one that cannot be used.
    """
    file = folder / GENERATION
    raw = read_json(file) if file.exists() else {}
    relevant = _SAMPLING if raw.get("do_sample") else ("repetition_penalty",)
    named = {name: raw[name] for name in relevant if raw.get(name) is not None}
    of_canvases = _canvas_defaults(raw)
    if not raw.get("do_sample") and not named:
        return of_canvases  # most files name token ids only: without what it takes to import transformers
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
    return of_canvases | {
        name: float(value) if name != "top_k" and type(value) is int else value
        for name, value in defaults.items()
    }


def _canvas_defaults(raw: dict[str, Any]) -> dict[str, Any]:
    named = {name: raw[name] for name in _OF_CANVASES if raw.get(name) is not None}
    sampler = raw.get("sampler_config")
    if isinstance(sampler, dict) and sampler.get("entropy_bound") is not None:
        named["entropy_bound"] = sampler["entropy_bound"]
    return named
