"""Steps of models that the package transformers runs, on a fake CUDA device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.implementation import implementation_of
from lopa_ray.model.transformers_models.config import make_pretrained_config
from lopa_ray.model.transformers_models.model_config import TransformersConfig
from support.empty_models import empty_on
from support.fake_cuda import CUDA, fake_cuda
from support.fake_steps import log_step, runner_of
from support.transformers_checkpoints import EXPERTS, config_json

CHANGES = {"granite": {"attention_multiplier": 0.125}}


def config_of(model_type: str, folder: Path) -> TransformersConfig:
    """The configuration of a tiny model."""
    content = config_json(model_type, **CHANGES.get(model_type, {}))
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    config = load_config(folder, "transformers")
    assert isinstance(config, TransformersConfig)
    return config


def model_on_a_gpu(config: TransformersConfig, dtype: torch.dtype) -> Any:
    """A model of random weights, whose experts are computed as transformers does by itself.

    `build_model` asks for experts of another kind on CPUs only, and can try models there only.
    """
    from transformers import AutoModelForCausalLM

    implementation = implementation_of(config, dtype)
    model: Any = implementation.build_model(implementation.random_weights(0))
    with torch.device("meta"):
        usual = AutoModelForCausalLM.from_config(make_pretrained_config(config.config_json))
    if config.family in EXPERTS:
        model.causal_lm.set_experts_implementation(usual.config._experts_implementation)
    return model


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [("llama", torch.float32), *((name, torch.bfloat16) for name in ("qwen3", "granite", *EXPERTS))],
    ids=str,
)
def test_steps(model_type: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = model_on_a_gpu(config_of(model_type, tmp_path), dtype)
    with fake_cuda():
        empty_on(model, CUDA)
        log = log_step(runner_of(model), 3, 4, 32)
    assert log.faults == []
