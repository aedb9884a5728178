"""Presets of the paper decode, on tiny models of the families that they name."""

from __future__ import annotations

import re

import pytest

from lopa_ray.config.yaml_files import presets
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.paths import MODELS

pytestmark = pytest.mark.medium

TINY = {
    "Dream-org/": "dream-tiny-4l",
    "apple/DiffuCoder": "dream-tiny-4l",
    "GSAI-ML/LLaDA": "llada-tiny-3l",
    "JetLM/SDAR": "sdar-tiny-3l",
}
"""How a checkpoint's name begins → a model of its family."""

LENGTH = 32

# One of each system stands for its settings, which differ in thresholds alone.
NAMES = [
    name
    for name in presets()
    if name.startswith("paper/") and not re.fullmatch(r"paper/s([2-6]|[89]|1[0-24-8])", name)
]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_decodes(name: str) -> None:
    published = Config.load(name)
    (tiny,) = {model for begin, model in TINY.items() if published.model.path.startswith(begin)}
    model = {"path": str(MODELS / tiny), "lora": None, "device": "cpu", "max_model_len": 64}
    decode = {"max_new_tokens": LENGTH, "ignore_eos": True}
    if "steps" in published.decode.model_fields_set:
        decode["steps"] = LENGTH
    config = Config.load(name, {"model": {**model, "dtype": "float32"}, "decode": decode})
    with LocalEngine.from_config(config) as engine:
        result = engine.generate([5, 6, 7, 8])
    assert len(result.token_ids) == LENGTH
    branches = config.decode.model_dump().get("num_branches", 1)
    if branches == 1:
        assert result.forwards == result.steps
    else:
        assert result.steps < result.forwards <= branches * result.steps
    if "steps" in decode:  # one position per step: TPF 1.0
        assert result.steps == LENGTH
