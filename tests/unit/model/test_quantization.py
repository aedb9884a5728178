"""Int8 layers: the error of one layer, exact products, and checkpoints that are quantised when loaded or saved so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CheckpointError
from lopa_ray.kernels.int8 import exact_matmul
from lopa_ray.kernels.int8_matmul import has_int8_kernel, int8_matmul
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from lopa_ray.model.linear import Linear
from lopa_ray.model.native_implementation import load_model
from lopa_ray.model.quantization.int8_format import quantize_rows
from lopa_ray.model.transformer import Transformer
from support.loaded_model import logits, same_weights
from support.paths import MODELS
from support.tiny_model import DENSE_MODELS, filled_linear, load_tiny_model, random_model

FORMATS = ("w8", "w8a8")


def layer(weight: Tensor, bias: Tensor | None = None, *, int8_activations: bool = True) -> Linear:
    return filled_linear("w8a8" if int8_activations else "w8", weight, bias)


def load(path: Path, quantization: str = "none", dtype: torch.dtype = torch.float32) -> Transformer:
    return load_model(path, dtype=dtype, device="cpu", quantization=quantization)


@pytest.mark.parametrize("spread", [1e-30, 1e-3, 1.0, 1e4])
def test_a_row_is_off_by_half_a_scale_at_most(spread: float) -> None:
    x = torch.randn(40, 70, generator=torch.Generator().manual_seed(0)) * spread
    x[3], x[4, 1:] = 0, 0
    whole, scale = quantize_rows(x)
    assert whole.abs().max() == 127
    assert ((whole * scale[:, None] - x).abs() <= scale[:, None] * 0.5001).all()
    assert not whole[3].any() and whole[4, 0].abs() == 127


@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 96), (37, 111), (200, 1500)])
def test_the_error_of_a_layer_is_bounded(outputs: int, inputs: int, activations: bool) -> None:
    """Each product x · w loses at most |x| · s_w/2 + |w| · s_x/2 + s_x · s_w/4, s the scales."""
    draw = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(outputs, inputs, generator=draw), torch.randn(outputs, generator=draw)
    x = torch.randn(33, inputs, generator=draw)
    x[:, 0] *= 50  # an outlier, as the activations of language models have them
    product = layer(weight, bias, int8_activations=activations)(x)
    w_scale = quantize_rows(weight)[1][None, :]
    x_scale = quantize_rows(x)[1][:, None] if activations else torch.zeros(33, 1)
    bound = x.abs().sum(1, keepdim=True) * w_scale + weight.abs().sum(1) * x_scale
    bound = bound / 2 + inputs * x_scale * w_scale / 4
    error = (product - F.linear(x, weight, bias)).abs()
    assert (error <= bound * 1.001 + 1e-4).all()
    assert error.max() > 0


@pytest.mark.parametrize("inputs", [1, 17, 1024, 1025, 3000])
@pytest.mark.parametrize("rows", [1, 16, 32, 50])
def test_both_products_are_exact(rows: int, inputs: int) -> None:
    draw = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-127, 128, (n, inputs), generator=draw, dtype=torch.int8) for n in (rows, 24))
    a[0], b[0], b[1] = 127, 127, -127
    b[2:] = b[2:].abs()  # sums with odd digits, beyond what fp32 counts one by one
    wanted = a.to(torch.int64) @ b.to(torch.int64).t()
    for product in (int8_matmul(a, b), exact_matmul(a, b)):
        assert product.dtype == torch.int32 and torch.equal(product.long(), wanted)


def test_a_kernel_that_fails_or_saturates_is_not_used(monkeypatch, caplog) -> None:
    def fails(a: Tensor, b: Tensor) -> Tensor:
        raise RuntimeError("self.size(1) needs to be a multiple of 8\nand more")

    def saturates(a: Tensor, b: Tensor) -> Tensor:
        return (a.int() @ b.int()).clamp(-32768, 32767)

    a, b = (torch.full((n, 40), 100, dtype=torch.int8) for n in (3, 5))
    for kernel, reason in ((fails, "multiple of 8"), (saturates, "saturates")):
        has_int8_kernel.cache_clear()
        monkeypatch.setattr(torch, "_int_mm", kernel)
        assert (int8_matmul(a, b) == 400_000).all()
        assert reason in caplog.records[-1].message
    has_int8_kernel.cache_clear()


@pytest.mark.medium
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("quantization", FORMATS)
@pytest.mark.parametrize("name", DENSE_MODELS)
def test_a_checkpoint_is_quantised_when_it_is_loaded(
    name: str, quantization: str, dtype: torch.dtype
) -> None:
    plain, model = load(MODELS / name), load(MODELS / name, quantization, dtype)
    assert model.config.quantization == quantization
    assert model.lm_head.weight.dtype == model.embed.weight.dtype == dtype
    for index, whole in enumerate(plain.layers):
        for part in ("qkv", "o", "mlp.gate_up", "mlp.down"):
            linear, before = model.layers[index].get_submodule(part), whole.get_submodule(part)
            assert isinstance(linear, Linear) and linear.weight.dtype == torch.int8
            restored = linear.weight * linear.weight_scale[:, None]
            assert ((restored - before.weight).abs() <= linear.weight_scale[:, None] * 0.5001).all()
            assert (linear.bias is None) == (before.bias is None)
    wanted, changed = logits(plain), logits(model)
    # The formats cost up to 5 % in fp32. A short dtype adds roundings, of which a CPU's own kernels decide.
    assert 0 < (changed - wanted).norm() / wanted.norm() < 0.05 + 4 * torch.finfo(dtype).eps


@pytest.mark.medium
@pytest.mark.parametrize(
    ("quantization", "other", "dtype"), [("w8", "w8a8", torch.float32), ("w8a8", "w8", torch.bfloat16)]
)
@pytest.mark.parametrize("name", DENSE_MODELS)
def test_what_is_saved_in_int8_loads_back(
    name: str, quantization: str, other: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = load(MODELS / name, quantization, dtype)
    save_model(model, tmp_path, dtype=dtype)
    again = load(tmp_path, dtype=dtype)
    assert again.config == model.config
    assert same_weights(again, model)
    assert torch.equal(logits(again), logits(model))
    assert torch.equal(logits(load(tmp_path, other, dtype)), logits(load(MODELS / name, other, dtype)))
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["quantization_config"] == {"quant_method": "lopa_ray_int8", "format": quantization}
    published, saved = (load_file(folder / "model.safetensors") for folder in (MODELS / name, tmp_path))
    scaled = {key.removesuffix("_scale") for key in saved.keys() - published.keys()}
    assert {key for key, tensor in saved.items() if tensor.dtype == torch.int8} == scaled
    assert len(scaled) == 7 * model.config.num_layers
    for key in scaled:
        assert saved[f"{key}_scale"].shape == published[key].shape[:1]
    others = saved.keys() - scaled
    assert {key: saved[key].dtype for key in others} == {
        key: torch.float32 if key.endswith("_scale") else dtype for key in others
    }


def test_an_adapter_is_merged_before_weights_are_quantised_and_never_after(tmp_path: Path) -> None:
    golden = MODELS.parent
    cases = [json.loads(line) for line in (golden / "forward_cases.jsonl").read_text().splitlines()]
    case = next(case for case in cases if "lora" in case)
    base, adapter = MODELS / case["model"], golden / "lora" / case["lora"]
    plain = load_model(base, dtype=torch.float32, device="cpu", lora=adapter)
    save_model(plain, tmp_path / "merged", dtype=torch.float32)
    merged = load_model(base, dtype=torch.float32, device="cpu", lora=adapter, quantization="w8a8")
    assert torch.equal(logits(merged), logits(load(tmp_path / "merged", "w8a8")))
    save_model(merged, tmp_path / "int8", dtype=torch.float32)
    with pytest.raises(CheckpointError, match=r"int8 already.*model\.quantization"):
        load_model(tmp_path / "int8", dtype=torch.float32, device="cpu", lora=adapter)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    save_model(load(MODELS / DENSE_MODELS[0], "w8a8"), tmp_path, dtype=torch.float32)
    config, file = tmp_path / "config.json", tmp_path / "model.safetensors"
    raw, tensors = json.loads(config.read_text()), load_file(file)
    config.write_text(json.dumps(raw | {"quantization_config": None}))
    with pytest.raises(CheckpointError, match=r"weight_scale .*not part of"):
        load(tmp_path)
    config.write_text(json.dumps(raw))
    name = "model.layers.0.mlp.down_proj.weight"
    save_file(tensors | {name: tensors[name].float()}, file)
    with pytest.raises(CheckpointError, match=rf"{name} is stored as torch.float32; allowed there: int8"):
        load(tmp_path)
    save_file({key: value for key, value in tensors.items() if key != f"{name}_scale"}, file)
    with pytest.raises(CheckpointError, match=f"{name}_scale is missing"):
        load(tmp_path)


def test_random_weights_are_the_same_before_they_are_quantised() -> None:
    config = load_tiny_model().config
    plain = random_model(config, 3, torch.float32, "cpu")
    model = random_model(dataclasses.replace(config, quantization="w8"), 3, torch.float32, "cpu")
    linear = model.layers[1].mlp.gate_up
    restored = linear.weight * linear.weight_scale[:, None]
    assert (
        (restored - plain.layers[1].mlp.gate_up.weight).abs() <= linear.weight_scale[:, None] * 0.5001
    ).all()
    assert torch.equal(model.lm_head.weight, plain.lm_head.weight)


@pytest.mark.medium
@pytest.mark.parametrize("quantization", [*FORMATS, "fp8"])
def test_the_demo_model_still_solves_its_problem(quantization: str) -> None:
    engine = LocalEngine.from_pretrained("demo", quantization=quantization, max_num_seqs=1, max_model_len=256)
    assert engine.runner.model.config.quantization == quantization
    problem = "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?"
    assert engine.generate(problem, LopaSettings(num_branches=2, max_new_tokens=96)).text.endswith("35")
