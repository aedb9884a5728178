"""`model.quantization: fp8`: floating weights that become fp8 when they are loaded, with a scale per output channel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.execution.model_loader import resolve_auto
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.kernels.fp8 import has_fp8_kernel, unfold
from lopa_ray.model import native_implementation
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from lopa_ray.model.config import Fp8Scales
from lopa_ray.model.native_implementation import NativeImplementation, load_model
from lopa_ray.model.quantization.weight_format import HeldWeights
from lopa_ray.model.tensor_parallel import shard_parameter
from lopa_ray.model.transformer import Transformer
from support.fake_cuda import AMPERE, CUDA, HOPPER, fake_cuda
from support.fp8_checkpoints import LAYOUTS, save_fp8
from support.loaded_model import IDS, logits, same_weights
from support.paths import MODELS
from support.thread_tensor_parallel import ShardedRunner, ShardThreads
from support.tiny_model import ALL_MODELS, CANVAS_MODEL, filled_linear

EXPERTS = "llada2-tiny-3l"
OUTPUTS, INPUTS = 48, 256

torch.set_num_threads(1)

needs_product = pytest.mark.skipif(
    not has_fp8_kernel("cpu", OUTPUTS, INPUTS, INPUTS), reason="this torch has no product of fp8 on the CPU"
)


def load(path: Path, quantization: str = "fp8", dtype: torch.dtype = torch.float32, **options) -> Transformer:
    return load_model(path, dtype=dtype, device="cpu", quantization=quantization, **options)


def converted(model: nn.Module) -> dict[str, Tensor]:
    """Names of layers that may be fp8 → their weights, unfolded. All are fp8, with a scale per output channel."""
    unfolded = {}
    for name, layer in model.named_modules():
        if isinstance(layer, HeldWeights) and layer.format.stored_dtype:
            assert layer.weight.dtype == torch.float8_e4m3fn and layer.format.width == layer.weight.shape[-1]
            assert layer.group_scale.dtype == torch.float32 and layer.group_scale.shape[-1] == 1
            unfolded[name] = unfold(layer.weight, layer.group_scale, layer.format.width)
    return unfolded


def rounding(x: Tensor) -> Tensor:
    """The largest error of each number of rows [R, I]: a sixteenth, or half a step of the smallest numbers."""
    scale = x.float().abs().amax(dim=-1, keepdim=True) / 448
    return torch.maximum(x.float().abs() / 16, scale * 2**-10) * 1.001


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# A layer


@needs_product
@torch.inference_mode()
def test_a_row_has_the_same_bits_whatever_is_beside_it_on_this_cpu() -> None:
    layer, x = filled_linear("fp8", draw(OUTPUTS, INPUTS)), draw(160, INPUTS).bfloat16()
    whole, order = layer(x), torch.Generator().manual_seed(1)
    for size in (1, 15, 16, 17, 100):
        picked = torch.randperm(160, generator=order)[:size]
        assert torch.equal(layer(x[picked]), whole[picked])


# Models


@pytest.mark.medium
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ALL_MODELS)
def test_a_checkpoint_is_converted_when_it_is_loaded(name: str, dtype: torch.dtype) -> None:
    plain, model = load(MODELS / name, "none"), load(MODELS / name, dtype=dtype)
    assert model.config.quantization == "fp8"
    assert model.config.fp8 == Fp8Scales(kind="channel", all_layers=True)
    assert model.lm_head.weight.dtype == model.embed.weight.dtype == dtype
    restored = converted(model)
    assert restored.keys() >= {
        f"layers.{i}.{part}" for i in range(plain.config.num_layers) for part in ("qkv", "o")
    }
    assert any("experts" in layer for layer in restored) == (plain.config.experts is not None)
    others = {
        name for name, layer in plain.named_modules() if isinstance(layer, HeldWeights)
    } - restored.keys()
    assert all(layer == "lm_head" or layer.endswith("router") for layer in others)
    for layer, weight in restored.items():
        before = plain.get_submodule(layer).weight
        assert ((weight - before).abs() <= rounding(before)).all(), layer
    held = sum(parameter.nbytes for parameter in model.parameters())
    assert NativeImplementation(model.config, dtype).weight_bytes() == held
    # Models of experts may route a row to others; what a format costs a dense one is measured.
    if plain.config.experts is None:
        wanted, changed = logits(plain), logits(model).float()
        assert 0 < (changed - wanted).norm() / wanted.norm() < 0.3


@pytest.mark.parametrize("name", ["dream-tiny-2l", EXPERTS])
def test_weights_in_fp32_compute_what_they_are_unfolded(name: str) -> None:
    model, unfolded = load(MODELS / name), load(MODELS / name, "none")
    for layer, weight in converted(model).items():
        unfolded.get_submodule(layer).weight.data = weight
    assert torch.equal(logits(model), logits(unfolded))


# Saved


@pytest.mark.medium
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["dream-tiny-2l", "llada-tiny-3l", EXPERTS])
def test_what_is_saved_loads_back(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = load(MODELS / name, dtype=dtype)
    save_model(model, tmp_path, dtype=dtype)
    again = load(tmp_path, dtype=dtype)
    assert again.config == model.config and same_weights(again, model)
    assert torch.equal(logits(again), logits(model))
    published, saved = (load_file(folder / "model.safetensors") for folder in (MODELS / name, tmp_path))
    scaled = {key.removesuffix("_scale") for key in saved.keys() - published.keys()}
    assert scaled and {key for key, value in saved.items() if value.dtype == torch.float8_e4m3fn} == scaled
    assert all(saved[f"{key}_scale"].shape == (saved[key].shape[0], 1) for key in scaled)
    stored = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert stored["quant_method"] == "compressed-tensors"
    floating = {f"{module}.weight" for module in stored["ignore"]}
    assert floating == {key for key, value in saved.items() if value.dim() == 2} - scaled - {
        f"{key}_scale" for key in scaled
    }
    # As any fp8 checkpoint, it is unfolded where the setting does not demand fp8.
    unfolded = load(tmp_path, "none")
    for layer, weight in converted(model).items():
        assert torch.equal(unfolded.get_submodule(layer).weight, weight)


# Checkpoints in fp8


@pytest.mark.parametrize("layout", ["odd_blocks", "compressed_channel", "static_tensor"])
def test_a_checkpoint_in_fp8_keeps_its_layout(layout: str, tmp_path: Path) -> None:
    stored, plain = save_fp8("dream-tiny-2l", LAYOUTS[layout], tmp_path)
    model, unfolded, scales = load(stored), load(plain, "none"), load_config(stored).fp8
    assert scales is not None and model.config.fp8 is not None
    assert (model.config.fp8.kind, model.config.fp8.block) == (scales.kind, scales.block)
    checked = 0
    for name, layer in model.named_modules():
        if isinstance(layer, HeldWeights) and layer.format.stored_dtype:
            assert layer.weight.dtype == torch.float8_e4m3fn
            before, got = (
                unfolded.get_submodule(name).weight,
                unfold(layer.weight, layer.group_scale, layer.format.width),
            )
            # Rows that the checkpoint has in fp8 are as they were; those that it has floating are converted.
            same = (got == before).all(dim=1)
            assert same.any() or name == "layers.0.mlp.down"
            assert ((got - before).abs() <= rounding(before)).all()
            checked += 1
    assert checked == 8


def test_layers_of_an_fp8_checkpoint_that_an_adapter_changes_are_converted_again(tmp_path: Path) -> None:
    adapter = MODELS.parent / "lora" / "dream-tiny-4l-r4"
    stored, plain = save_fp8("dream-tiny-4l", LAYOUTS["compressed_channel"], tmp_path)
    wanted = load(plain, "none", lora=adapter)
    for layer, weight in converted(load(stored, lora=adapter)).items():
        before = wanted.get_submodule(layer).weight
        assert ((weight - before).abs() <= rounding(before)).all()


# Shards


@pytest.mark.medium
@pytest.mark.parametrize("expert_parallel", [True, False])
def test_shards_have_parts_of_the_whole_weights(expert_parallel: bool) -> None:
    """Their scales are those of whole rows."""
    restored = converted(load(MODELS / EXPERTS))
    config = load_config(MODELS / EXPERTS).with_quantization("fp8").with_expert_parallel(expert_parallel)
    for group in ShardThreads(2).tp_groups:
        implementation = NativeImplementation(config, torch.float32, "cpu", group)
        parts = converted(implementation.build_model(implementation.read_weights(MODELS / EXPERTS)))
        assert parts.keys() == restored.keys()
        for layer, part in parts.items():
            wanted = shard_parameter(f"{layer}.weight", restored[layer], config, group.rank, 2)
            assert torch.equal(part, wanted)


@pytest.mark.medium
@pytest.mark.parametrize("name", ALL_MODELS)
def test_shards_compute_what_the_whole_model_does(name: str) -> None:
    whole = load(MODELS / name)
    runner = ShardedRunner(whole, 2, max_num_seqs=1, max_model_len=16)
    torch.testing.assert_close(runner.logits(IDS), logits(whole), atol=1e-4, rtol=1e-4)


# Devices


def test_every_device_has_fp8_if_it_is_demanded() -> None:
    config = load_config(MODELS / "dream-tiny-2l").with_quantization("fp8")
    for major in (AMPERE, HOPPER):
        with fake_cuda(major):
            assert NativeImplementation(config, torch.bfloat16, CUDA).fitted() == config
    assert NativeImplementation(config, torch.float32, "cpu").fitted() == config


@pytest.mark.parametrize("device", ["cpu", "cuda", "npu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stored", [False, True])
def test_a_specification_has_it_too(device: str, dtype: str, stored: bool, tmp_path: Path) -> None:
    folder = MODELS / "dream-tiny-2l"
    if stored:
        folder = save_fp8("dream-tiny-2l", LAYOUTS["blocks"], tmp_path)[0]
    model = {
        "path": str(folder),
        "device": device,
        "dtype": dtype,
        "quantization": "fp8",
        "attention": "sdpa",
    }
    spec = ModelSpec.read(Config.parse({"model": model}))
    assert spec.model.quantization == "fp8" and not spec.has_auto
    assert spec.model == load_config(folder).with_quantization("fp8")
    assert resolve_auto(spec) == spec


def test_experts_need_a_gpu_whose_kernels_have_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    experts, dense = load(MODELS / EXPERTS), load(MODELS / "dream-tiny-2l")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(SettingsError, match=r"model\.quantization: got 'fp8' for a llada2 model.*8\.9.*w8"):
        native_implementation._check_experts(experts, CUDA)
    native_implementation._check_experts(dense, CUDA)
    native_implementation._check_experts(experts, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    native_implementation._check_experts(experts, CUDA)


# Refusals


def test_weights_in_int8_do_not_become_fp8(tmp_path: Path) -> None:
    save_model(load(MODELS / "dream-tiny-2l", "w8"), tmp_path, dtype=torch.float32)
    with pytest.raises(
        SettingsError, match=r"model\.quantization: got 'fp8' .*int8 already.*none, w8 or w8a8"
    ):
        load(tmp_path)


def test_models_of_canvases_do_not_have_it() -> None:
    with pytest.raises(
        SettingsError, match=r"model\.quantization: got 'fp8'.*which transformers runs.*set it to none"
    ):
        load_config(CANVAS_MODEL, "auto").with_quantization("fp8")
