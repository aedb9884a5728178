"""Checkpoints in fp8: unfolded they are the floating ones they stand for, and kept in fp8 they compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.model_loader import resolve_auto
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.kernels import fp8
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import read_weights, save_model
from lopa_ray.model.checkpoint.weight_source import AT_START, WeightSource
from lopa_ray.model.config import Fp8Scales
from lopa_ray.model.implementation import implementation_of
from lopa_ray.model.native_implementation import NativeImplementation, load_model
from lopa_ray.model.quantization.weight_format import HeldWeights
from lopa_ray.model.tensor_parallel import shard_parameter
from lopa_ray.model.transformer import Transformer
from support.checkpoints import edit_json, edit_tensors, refused
from support.device_log import DeviceLog
from support.fake_cuda import AMPERE, CUDA, HOPPER, fake_cuda
from support.fp8_checkpoints import LAYOUTS, compressed, fine_grained, save_fp8
from support.loaded_model import IDS, logits, same_weights, state
from support.paths import MODELS
from support.thread_tensor_parallel import ShardedRunner, ShardThreads
from support.tiny_model import ALL_MODELS, random_model

EXPERTS = "llada2-tiny-3l"
DOWN = "model.layers.1.mlp.down_proj.weight"

CHECKPOINTS = [
    *(("dream-tiny-2l", layout) for layout in LAYOUTS),
    *((name, "odd_blocks") for name in ALL_MODELS if name != "dream-tiny-2l"),
    (EXPERTS, "compressed_channel"),
    (EXPERTS, "static_tensor"),
]
"""Each layout, and each model."""

torch.set_num_threads(1)


def load(path: Path, **options: Any) -> Transformer:
    return load_model(path, **{"dtype": torch.float32, "device": "cpu", **options})


def keep_fp8(path: Path, dtype: torch.dtype = torch.float32, lora: Path | None = None) -> Transformer:
    """The model as a device that multiplies fp8 gets it."""
    source = AT_START if lora is None else WeightSource(loras=(lora,))
    weights = read_weights(path, load_config(path), source, dtype=dtype)
    return NativeImplementation(load_config(path), dtype, "cpu").build_model(weights)


@pytest.mark.medium
@pytest.mark.parametrize(("name", "layout"), CHECKPOINTS)
def test_unfolded_weights_are_those_of_the_formula(
    name: str, layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored, plain = save_fp8(name, LAYOUTS[layout], tmp_path)
    model, wanted = load(stored), load(plain)
    assert model.config == wanted.config
    assert same_weights(model, wanted)
    assert not same_weights(model, load(MODELS / name)), "nothing was quantised"
    half = load(stored, dtype=torch.bfloat16)
    assert same_weights(half, load(plain, dtype=torch.bfloat16))
    assert caplog.text.count("weights in fp8 are unfolded to bfloat16") == 1


@pytest.mark.medium
@pytest.mark.parametrize(("name", "layout"), CHECKPOINTS)
def test_what_is_kept_in_fp8_computes_the_same(name: str, layout: str, tmp_path: Path) -> None:
    stored, plain = save_fp8(name, LAYOUTS[layout], tmp_path)
    model, wanted = keep_fp8(stored), load(plain)
    kept = [layer for layer in model.layers.modules() if isinstance(layer, HeldWeights)]
    in_fp8 = [module for module in kept if module.weight.dtype == torch.float8_e4m3fn]
    assert len(in_fp8) > len(kept) / 2
    assert all((module.format.stored_dtype is None) == (module not in in_fp8) for module in kept)
    assert torch.equal(logits(model), logits(wanted))


def test_a_layer_of_which_a_part_is_not_converted_is_floating(tmp_path: Path) -> None:
    stored, _ = save_fp8("dream-tiny-2l", LAYOUTS["odd_blocks"], tmp_path)
    model = keep_fp8(stored)
    first, second = (layer.qkv.weight.dtype for layer in model.layers)
    assert (first, second) == (torch.float8_e4m3fn, torch.float32)
    assert model.layers[0].mlp.down.weight.dtype == torch.float32


@pytest.mark.medium
@pytest.mark.parametrize(("name", "quantization"), [("dream-tiny-2l", "w8"), (EXPERTS, "w8a8")])
def test_int8_is_made_of_the_unfolded_weights(
    name: str, quantization: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored, plain = save_fp8(name, LAYOUTS["compressed_channel"], tmp_path)
    model = load(stored, quantization=quantization)
    assert model.config.quantization == quantization and model.config.fp8 is None
    assert same_weights(model, load(plain, quantization=quantization))
    assert not caplog.records
    save_model(model, tmp_path / "int8", dtype=torch.float32)
    assert same_weights(load(tmp_path / "int8"), model)


def test_an_adapter_is_merged_into_unfolded_weights(tmp_path: Path) -> None:
    adapter = MODELS.parent / "lora" / "dream-tiny-4l-r4"
    stored, plain = save_fp8("dream-tiny-4l", LAYOUTS["odd_blocks"], tmp_path)
    wanted = load(plain, lora=adapter)
    assert same_weights(load(stored, lora=adapter), wanted)
    kept = keep_fp8(stored, lora=adapter)
    assert {layer.qkv.weight.dtype for layer in kept.layers} == {torch.float32}
    assert kept.layers[1].mlp.down.weight.dtype == torch.float8_e4m3fn
    assert torch.equal(logits(kept), logits(wanted))


def test_fp8_in_blocks_is_not_saved(tmp_path: Path) -> None:
    stored, _ = save_fp8("dream-tiny-2l", LAYOUTS["blocks"], tmp_path)
    with pytest.raises(CheckpointError, match=r"weights in fp8 that have a scale per block.*on the CPU"):
        save_model(keep_fp8(stored), tmp_path / "again", dtype=torch.bfloat16)
    assert not (tmp_path / "again").exists()


# Shards


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "layout", "expert_parallel"),
    [
        ("dream-tiny-2l", "blocks", False),
        ("dream-tiny-2l", "odd_blocks", False),
        (EXPERTS, "odd_blocks", True),
        (EXPERTS, "odd_blocks", False),
        (EXPERTS, "compressed_channel", False),
        (EXPERTS, "static_tensor", True),
    ],
)
def test_scales_are_cut_as_weights_are(name: str, layout: str, expert_parallel: bool, tmp_path: Path) -> None:
    """A shard's weights times a shard's scales are the shard's part of the unfolded weights, bit by bit."""
    stored, plain = save_fp8(name, LAYOUTS[layout], tmp_path, all_layers=True)
    config, unfolded = load_config(stored), state(load(plain))
    if config.experts is not None:
        config = config.with_expert_parallel(expert_parallel)
    groups = ShardThreads(2).tp_groups
    for group in groups:
        weights = implementation_of(config, torch.float32, tp_group=group).read_weights(stored)
        shard = NativeImplementation(config, torch.float32, "cpu", group).build_model(weights)
        checked = 0
        for module_name, module in shard.named_modules():
            if isinstance(module, HeldWeights) and module.format.stored_dtype:
                whole = unfolded[f"{module_name}.weight"]
                wanted = shard_parameter(f"{module_name}.weight", whole, config, group.rank, 2)
                got = fp8.unfold(module.weight, module.group_scale, module.format.width)
                assert torch.equal(got, wanted), module_name
                checked += 1
        assert checked >= 4 * config.num_layers


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "layout"), [("dream-tiny-2l", "compressed_channel"), (EXPERTS, "odd_blocks")]
)
def test_shards_compute_what_the_whole_model_does(name: str, layout: str, tmp_path: Path) -> None:
    stored, plain = save_fp8(name, LAYOUTS[layout], tmp_path)
    whole = keep_fp8(stored)
    runner = ShardedRunner(whole, 2, max_num_seqs=1, max_model_len=16)
    torch.testing.assert_close(runner.logits(IDS), logits(load(plain)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("scales", "inputs", "cut", "width"),
    [
        (Fp8Scales(kind="channel"), 300, False, 300),
        (Fp8Scales(kind="block", block=(128, 128)), 300, False, 128),
        (Fp8Scales(kind="block", block=(128, 128)), 100, False, 100),
        (Fp8Scales(kind="block", block=(128, 128), shards=4), 192, True, 64),
        (Fp8Scales(kind="block", block=(128, 128), shards=4), 192, False, 128),
    ],
)
def test_inputs_that_share_a_scale(scales: Fp8Scales, inputs: int, cut: bool, width: int) -> None:
    assert scales.width(inputs, cut=cut) == width


# Devices


def test_fp8_is_kept_where_it_is_multiplied(tmp_path: Path) -> None:
    stored, _ = save_fp8("dream-tiny-2l", LAYOUTS["blocks"], tmp_path)
    config = load_config(stored)
    assert (config.quantization, config.fp8) == ("fp8", Fp8Scales(kind="block", block=(128, 128)))

    def format_on(major: int, dtype: torch.dtype) -> str:
        with fake_cuda(major):
            return NativeImplementation(config, dtype, CUDA).fitted().quantization

    # There are no numbers on a fake device: the trial of the product cannot find one wrong.
    with fake_cuda(HOPPER), DeviceLog():
        assert NativeImplementation(config, torch.bfloat16, CUDA).fitted() == config
    assert format_on(AMPERE, torch.bfloat16) == "none"
    assert format_on(HOPPER, torch.float16) == "none"
    assert NativeImplementation(config, torch.bfloat16, "cpu").fitted() == config.unfolded()
    assert config.unfolded().fp8 is None and config.unfolded().unfolded() == config.unfolded()


def test_a_specification_depends_on_the_kind_of_device(tmp_path: Path) -> None:
    stored, plain = save_fp8("dream-tiny-2l", LAYOUTS["compressed_channel"], tmp_path, all_layers=True)

    def spec(folder: Path, **model: Any) -> ModelSpec:
        return ModelSpec.read(Config.parse({"model": {"path": str(folder), "max_model_len": 64, **model}}))

    on_gpu = spec(stored, device="cuda", attention="sdpa")
    assert on_gpu.model.quantization == "fp8" and on_gpu.has_auto and not on_gpu.has_auto_attention
    floating = spec(plain, device="cuda", attention="sdpa")
    assert not floating.has_auto
    kept = sum(value.nbytes for value in state(keep_fp8(stored, torch.bfloat16)).values())
    assert on_gpu.weight_bytes == kept < floating.weight_bytes
    for other in (spec(stored), spec(stored, device="npu"), spec(stored, device="cuda", dtype="float16")):
        assert other.model == spec(plain).model
    assert spec(stored).weight_bytes == spec(plain).weight_bytes
    assert spec(stored, device="cuda", quantization="w8").model.quantization == "w8"
    assert resolve_auto(spec(stored)) == spec(stored)


@pytest.mark.medium
def test_random_weights_of_an_fp8_checkpoint_are_fp8(tmp_path: Path) -> None:
    for layout in ("odd_blocks", "compressed_channel"):
        stored, plain = save_fp8(EXPERTS, LAYOUTS[layout], tmp_path / layout, all_layers=True)
        model = random_model(load_config(stored), 3, torch.float32, "cpu")
        floating = random_model(load_config(plain), 3, torch.float32, "cpu")
        for got, wanted in zip(model.modules(), floating.modules(), strict=True):
            if isinstance(got, HeldWeights) and got.format.stored_dtype:
                assert got.weight.dtype == torch.float8_e4m3fn
                restored = fp8.unfold(got.weight, got.group_scale, got.format.width)
                assert 0 < (restored - wanted.weight).norm() < 0.04 * wanted.weight.norm()
        parameters = sum(parameter.nbytes for parameter in model.parameters())
        assert NativeImplementation(load_config(stored), torch.float32).weight_bytes() == parameters


# Refusals


def fp8_folder(folder: Path, layout: str) -> Path:
    return save_fp8("dream-tiny-2l", LAYOUTS[layout], folder)[0]


@pytest.mark.parametrize(
    ("layout", "scale"), [("odd_blocks", "weight_scale_inv"), ("compressed_channel", "weight_scale")]
)
def test_a_weight_without_scales_is_named(layout: str, scale: str, tmp_path: Path) -> None:
    folder = fp8_folder(tmp_path, layout)
    name = DOWN.replace("weight", scale)
    edit_tensors(folder, **{name.replace(".", "/"): None})
    refused(folder, "model.safetensors", f"tensor {DOWN} is stored in fp8, and its scales are missing", name)


@pytest.mark.parametrize(
    ("layout", "shape", "allowed"),
    [
        ("odd_blocks", (3, 3), "[3, 4]"),
        ("compressed_channel", (63, 1), "[64, 1] or [64]"),
        ("static_tensor", (2,), "[] or [1] or [1, 1]"),
    ],
)
def test_scales_of_another_shape_are_named(
    layout: str, shape: tuple[int, ...], allowed: str, tmp_path: Path
) -> None:
    folder = fp8_folder(tmp_path, layout)
    name = DOWN.replace("weight", LAYOUTS[layout].scale_name)
    edit_tensors(folder, **{name.replace(".", "/"): torch.ones(shape)})
    refused(folder, "model.safetensors", f"tensor {name} has shape {list(shape)}", DOWN, f"have {allowed};")


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 0.0, -0.5])
def test_scales_that_are_no_positive_numbers_are_named(number: float, tmp_path: Path) -> None:
    folder = fp8_folder(tmp_path, "odd_blocks")
    name = DOWN.replace("weight", "weight_scale_inv")
    scales = torch.ones(3, 4)
    scales[1, 2] = number
    edit_tensors(folder, **{name.replace(".", "/"): scales})
    refused(folder, "model.safetensors", f"tensor {name} has the scale {number}", "finite numbers above 0")


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (fine_grained([128, 0]), "weight_block_size = [128, 0]"),
        (fine_grained([128, 128], fmt="e5m2"), "fmt = 'e5m2'"),
        (compressed("group", group_size=64), "group_size = 64"),
        (compressed("block"), "block_structure = None"),
        (compressed("channel", symmetric=False), "symmetric = False"),
        (compressed("channel") | {"sparsity_config": {"format": "2:4"}}, "sparsity_config = "),
        (
            compressed("channel")
            | {
                "config_groups": {
                    name: compressed(name)["config_groups"]["group_0"] for name in ("channel", "tensor")
                }
            },
            "config_groups with different weights",
        ),
    ],
)
def test_kinds_of_fp8_that_are_not_read_are_named(checkpoint: Path, stored: Any, named: str) -> None:
    edit_json(checkpoint / "config.json", quantization_config=stored)
    refused(checkpoint, "config.json", f"with {named}", "use the unquantised (bfloat16) checkpoint")


def test_a_model_that_transformers_runs_is_not_read_in_fp8(tmp_path: Path) -> None:
    folder = fp8_folder(tmp_path, "blocks")
    with pytest.raises(
        CheckpointError, match=r"of quant_method 'fp8'.*set model\.implementation to auto or native"
    ):
        load_config(folder, "transformers")
