"""Rotary embeddings as transformers 5 writes them, in `rope_parameters`, for both implementations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.transformers_models.model_config import TransformersConfig
from support.checkpoints import edit_json
from support.paths import MODELS
from support.transformers_checkpoints import bidirectional_logits, runner_of, save_checkpoint

FAMILIES = [
    "dream-tiny-2l",
    "llada-tiny-3l",
    "sdar-tiny-3l",
    "sdar-moe-tiny-3l",
    "llada2-tiny-3l",
    "fast-dllm-v2",
]
IMPLEMENTATIONS = ("native", "transformers")
IDS = list(range(3, 40))


@pytest.fixture(params=FAMILIES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The config.json of a recorded checkpoint of each family, without any key about rotation."""
    recorded = "dream-tiny-2l" if request.param == "fast-dllm-v2" else request.param
    copied = Path(shutil.copy(MODELS / recorded / "config.json", tmp_path / "config.json"))
    if request.param == "fast-dllm-v2":
        names = {"model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"]}
        edit_json(copied, **names)
    edit_json(copied, rope_theta=..., rope_scaling=...)
    return copied


def theta_of(config: NativeConfig | TransformersConfig) -> float:
    if isinstance(config, TransformersConfig):
        return float(json.loads(config.config_json)["rope_theta"])
    return config.rope_theta


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_default_type_is_read(file: Path, implementation: Any, key: str) -> None:
    edit_json(file, **{key: {"rope_type": "default", "rope_theta": 12345.0}})
    assert theta_of(load_config(file.parent, implementation)) == 12345.0
    edit_json(file, rope_theta=12345.0)
    assert theta_of(load_config(file.parent, implementation)) == 12345.0


@pytest.mark.parametrize(
    ("key", "parameters"),
    [
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0, "factor": 4.0}),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
        ("rope_scaling", {"rope_type": ["default"]}),
        ("rope_parameters", [1]),
    ],
    ids=str,
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_is_not_computed_is_refused_by_name(
    file: Path, implementation: Any, key: str, parameters: Any
) -> None:
    """LLaDA2.0 rotates a part of each head, which may be another one there."""
    edit_json(file, rope_theta=10000.0, **{key: parameters})
    if "partial_rotary_factor" in parameters:
        if json.loads(file.read_text())["model_type"] == "llada2_moe":
            edit_json(file, partial_rotary_factor=0.5)
        key = "partial_rotary_factor"
    with pytest.raises(CheckpointError, match=key):
        load_config(file.parent, implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_contradicting_numbers_are_refused(file: Path, implementation: Any) -> None:
    edit_json(file, rope_theta=10000.0, rope_parameters={"rope_type": "default", "rope_theta": 20000.0})
    with pytest.raises(
        CheckpointError, match=r"rope_theta = 10000\.0, but rope_theta = 20000\.0 in rope_param"
    ):
        load_config(file.parent, implementation)


@pytest.mark.medium
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_checkpoint_that_transformers_saved(tmp_path: Path, implementation: str) -> None:
    theirs = save_checkpoint("qwen3", tmp_path, rope_theta=500.0)
    file = tmp_path / "config.json"
    saved = json.loads(file.read_text())
    assert (
        saved["rope_parameters"] == {"rope_type": "default", "rope_theta": 500.0}
        and "rope_theta" not in saved
    )
    edit_json(file, model_type="sdar", architectures=["SDARForCausalLM"])
    got = runner_of(tmp_path, implementation=implementation).logits(IDS)
    torch.testing.assert_close(got, bidirectional_logits(theirs, IDS), atol=1e-4, rtol=1e-4)
