"""What `model.dtype` auto stands for, and who says so."""

from __future__ import annotations

import pytest
import torch

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from support.tiny_model import tiny_config, tiny_spec


@pytest.mark.parametrize(("device", "name"), [("cpu", "float32"), ("cuda", "bfloat16"), ("npu", "bfloat16")])
def test_accelerators_compute_in_bfloat16_unless_told_otherwise(device: str, name: str) -> None:
    assert ModelSettings().dtype == Config.load("demo").model.dtype == "auto"
    spec = tiny_spec(model={"device": device})
    assert (spec.config.model.dtype, spec.dtype) == (name, getattr(torch, name))
    assert tiny_spec(model={"device": device, "dtype": "float32"}).dtype == torch.float32


def test_an_engine_names_what_auto_stands_for() -> None:
    with LocalEngine.from_config(tiny_config(model={"dtype": "auto"})) as engine:
        assert engine.config.model.dtype == "float32"
        assert engine.runner.model.embed.weight.dtype == torch.float32
