"""Native families run by transformers compute what this project's own transformer does."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.model_loader import load_weights
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.families.native import FAMILIES
from lopa_ray.model.implementation import implementation_of
from lopa_ray.model.transformer import Transformer
from lopa_ray.model.transformers_implementation.model import TransformersModel
from support.checkpoints import edit_json, edit_tensors
from support.paths import GOLDEN, MODELS
from support.tiny_model import DENSE_FAMILIES, TINY_MODELS
from support.transformers_checkpoints import runner_of

pytestmark = pytest.mark.medium

IDS = random.Random(0).choices(range(120), k=40)

torch.set_num_threads(1)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A recorded checkpoint of a family. One that has the tensors of another family gets its own names, and tied
    embeddings."""
    (family,) = (family for family in FAMILIES if family.name == request.param)
    recorded = MODELS / TINY_MODELS[family.name]
    if load_config(recorded).family == family.name:
        return recorded
    copied = Path(shutil.copytree(recorded, tmp_path / "model"))
    names = {"model_type": family.model_type, "architectures": [family.architecture]}
    edit_json(copied / "config.json", **names, tie_word_embeddings=True)
    edit_tensors(copied, **{"lm_head/weight": None})
    return copied


def both(folder: Path, **model: Any) -> tuple[Any, Any]:
    native, other = (runner_of(folder, implementation=name, **model) for name in ("native", "transformers"))
    assert isinstance(native.model, Transformer)
    assert isinstance(other.model, TransformersModel)
    return native, other


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize("folder", DENSE_FAMILIES, indirect=True)
def test_logits_agree(folder: Path) -> None:
    """Full attention, block-causal attention, and both behind a cached prefix."""
    steps: list[dict[str, Any]] = [
        {"ids": IDS},
        {"ids": IDS, "segments": ((8, 8), (24, 24), (40, 40)), "to_stage": (range(16),)},
        {"ids": IDS[16:], "start": 16},
        {"ids": IDS[16:], "start": 16, "segments": ((24, 24), (40, 40)), "to_stage": (range(16, 24),)},
        {"ids": IDS[24:], "start": 24, "segments": ((32, 40), (40, 32))},
    ]
    native, other = both(folder)
    for step in steps:
        expected, got = (runner.logits(**step) for runner in (native, other))
        assert expected.std() > 0.5
        # Rounding grows with the logits: those of most families have a deviation of about 5.
        torch.testing.assert_close(got, expected, atol=5e-6 * max(4.0, expected.std().item()), rtol=0)
    # What was staged is the same too.
    keys, values = (runner.cache.layer_views(0, 1)[0][:, :24] for runner in (native, other))
    torch.testing.assert_close(keys, values, atol=1e-5, rtol=0)


def test_half_precision() -> None:
    native, other = both(MODELS / "dream-tiny-4l", dtype="bfloat16")
    assert {p.dtype for p in other.model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in other.model.parameters()) and not other.model.training
    expected, got = (runner.logits(IDS) for runner in (native, other))
    torch.testing.assert_close(got, expected, atol=0.5, rtol=0)


def test_without_yarn_the_class_takes_none_of_its_own(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODELS / TINY_MODELS["nemotron"], tmp_path / "model"))
    edit_json(folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    expected, got = (runner.logits(IDS) for runner in both(folder))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
    with_yarn, _ = both(MODELS / TINY_MODELS["nemotron"])
    assert (with_yarn.logits(IDS) - expected).abs().max() > 0.1


def test_an_adapter_is_merged_under_published_names(llada_adapter: Path) -> None:
    """LLaDA's: attn_out is o_proj to transformers."""
    native, other = both(MODELS / "llada-tiny-3l", lora=str(llada_adapter))
    expected, got = (runner.logits(IDS) for runner in (native, other))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
    assert (got - runner_of(MODELS / "llada-tiny-3l").logits(IDS)).abs().max() > 0.1


def test_an_adapter_of_another_model_is_refused() -> None:
    """Before anything is merged: it has four layers, and the model two."""
    adapter = str(GOLDEN / "lora" / "dream-tiny-4l-r4")
    with pytest.raises(CheckpointError, match=r"adapts model\.layers\.2\..* not a linear layer of the model"):
        runner_of(MODELS / "dream-tiny-2l", implementation="transformers", lora=adapter)


# Weights


def spec_of(folder: Path, **model: Any) -> ModelSpec:
    settings = {"path": str(folder), "implementation": "transformers", **model}
    return ModelSpec.read(Config.parse({"model": settings}))


@pytest.mark.parametrize("folder", DENSE_FAMILIES, indirect=True)
def test_weights_are_counted_without_being_read(folder: Path) -> None:
    spec = spec_of(folder)
    weights = dict(load_weights(spec, "cpu"))
    assert spec.weight_bytes == sum(tensor.nbytes for tensor in weights.values())
    assert spec.weight_bytes == implementation_of(load_config(folder), torch.float32).weight_bytes()
    # As torch aligns its own memory: products may round by where their operands lie.
    assert all(tensor.data_ptr() % 64 == 0 for tensor in weights.values())


def test_models_of_the_same_weights_share_their_memory() -> None:
    """As workers on a node do, in memory that none of them may write to."""
    spec = spec_of(GOLDEN / "models" / "sdar-tiny-3l")
    weights = dict(load_weights(spec, "cpu"))
    before = {name: tensor.clone() for name, tensor in weights.items()}
    models = [
        implementation_of(spec.model, torch.float32).build_model(iter(weights.items())) for _ in range(2)
    ]
    for model in models:
        assert isinstance(model, TransformersModel)
        parameters = dict(model.causal_lm.named_parameters())
        assert {name: p.data_ptr() for name, p in parameters.items()} == {
            name: tensor.data_ptr() for name, tensor in weights.items()
        }
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.items())


def test_random_weights_follow_the_seed() -> None:
    implementation = implementation_of(spec_of(MODELS / "dream-tiny-2l").model, torch.float32)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    one, same, other = (dict(implementation.random_weights(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])
    # The shapes of what is published.
    published = load_file(MODELS / "dream-tiny-2l" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in one.items()} == {
        name: tensor.shape for name, tensor in published.items()
    }
