"""Sampling settings in a checkpoint's `generation_config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lopa_ray.model.config_json.json_file import read_json

GENERATION = "generation_config.json"

_FLOATS = ("temperature", "top_p", "repetition_penalty")

_SAMPLING = (*_FLOATS, "top_k")  # sampling settings of any model, under their names in transformers

_OF_CANVASES = ("max_denoising_steps", "t_min", "t_max", "stability_threshold", "confidence_threshold")
"""Settings of DiffusionGemma's decoder, under their names in transformers' `DiffusionGemmaGenerationConfig`."""


def read_generation_defaults(folder: Path) -> dict[str, Any]:
    """The decode settings that the checkpoint in `folder` recommends; a decoder takes the settings that it has a place
    for. As transformers reads them: without `do_sample` decoding is greedy, whatever the temperature. Settings that the
    file does not name are left out. Values are not checked. Raises CheckpointError for a file that cannot be read."""
    file = folder / GENERATION
    raw = read_json(file) if file.exists() else {}
    names = (*_OF_CANVASES, *(_SAMPLING if raw.get("do_sample") else ("repetition_penalty",)))
    named = {name: raw[name] for name in names if raw.get(name) is not None}
    sampler = raw.get("sampler_config")
    if isinstance(sampler, dict) and sampler.get("entropy_bound") is not None:
        named["entropy_bound"] = sampler["entropy_bound"]
    if raw.get("do_sample"):
        named.setdefault("temperature", 1.0)
    if named.get("top_k") == 0:  # off
        del named["top_k"]
    floats = {name: float(named[name]) for name in _FLOATS if type(named.get(name)) is int}
    return named | floats
