"""Weights in fp8 on CUDA: torch's products, this project's kernels, and checkpoints that stay in fp8."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("pydantic")

from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels import fp8
from lopa_ray.kernels.fp8 import fp8_linear, has_fp8_kernel, quantize_groups, unfold
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.model.native_implementation import load_model
from support.fp8_checkpoints import LAYOUTS, save_fp8
from support.paths import MODELS
from support.tiny_model import ALL_MODELS, PROMPTS, SETTINGS

IDS = [5, 9, 127, 127, 3, 127, 60, 127] * 5

MULTIPLIES = torch.cuda.is_available() and fp8.computes_fp8(torch.device("cuda"))

NEEDS_FP8 = pytest.mark.skipif(not MULTIPLIES, reason="needs compute capability 8.9")

IN_BLOCKS = pytest.mark.skipif(
    not MULTIPLIES or torch.cuda.get_device_capability()[0] != 9 or (torch.version.cuda or "0") < "12.9",
    reason="torch has products of fp8 in blocks for compute capability 9 with CUDA 12.9",
)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@NEEDS_FP8
@torch.inference_mode()
@pytest.mark.parametrize(("inputs", "width"), [(64, 64), (3584, 3584), (3584, 128)])
def test_rows_are_quantised_as_on_the_host(inputs: int, width: int) -> None:
    x = draw(48, inputs)
    x[3] = 0
    quantized, scale = quantize_groups(x.cuda(), width)
    wanted, wanted_scale = quantize_groups(x, width)
    assert torch.equal(scale.cpu(), wanted_scale)
    assert torch.equal(quantized.cpu().float(), wanted.float())


@torch.inference_mode()
@pytest.mark.parametrize(
    "width", [pytest.param(0, marks=NEEDS_FP8, id="rows"), pytest.param(128, marks=IN_BLOCKS, id="blocks")]
)
@pytest.mark.parametrize("rows", [1, 16, 17, 160])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 128), (4608, 3584), (3584, 18944)])
def test_products_are_those_of_the_formula(outputs: int, inputs: int, rows: int, width: int) -> None:
    width = width or inputs
    weight, scale = quantize_groups(draw(outputs, inputs).float() / inputs**0.5, width)
    x, bias = draw(rows, inputs), draw(outputs)
    there = [tensor.cuda() for tensor in (x, weight, bias)]
    out = fp8_linear(there[0], there[1], fp8.by_group(scale.cuda()), width, there[2])
    assert has_fp8_kernel("cuda", outputs, inputs, width)
    factors = quantize_groups(x, width)
    wanted = F.linear(unfold(*factors, width), unfold(weight, scale, width)) + bias.float()
    assert (out.cpu().float() - wanted).norm() / wanted.norm() < 0.01


@NEEDS_FP8
@torch.inference_mode()
@pytest.mark.parametrize("width", [128, 96, 256])
def test_experts_are_unfolded_within_their_product(width: int) -> None:
    weight = draw(8, 96, 256).float().to(fp8.FP8)
    scale = torch.rand(8, 96, -(-256 // width), generator=torch.Generator().manual_seed(1)) + 0.5
    x, ends = draw(70, 256) / 16, torch.tensor([0, 5, 21, 21, 40, 41, 60, 70], dtype=torch.int32)
    out = grouped_matmul(x.cuda(), weight.cuda(), ends.cuda(), scale.cuda(), width)
    wanted = grouped_matmul(x, weight, ends, scale, width)
    torch.testing.assert_close(out.cpu(), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("layout", ["compressed_channel", "static_tensor", "blocks", "powers_of_two"])
@pytest.mark.parametrize("name", ALL_MODELS)
def test_logits_are_near_those_of_unfolded_weights(name: str, layout: str, tmp_path: Path) -> None:
    """Activations are rounded to 4 bits; a checkpoint in blocks other than of 128 inputs is unfolded."""
    stored, plain = save_fp8(name, LAYOUTS[layout], tmp_path)
    model = load_model(stored, dtype=torch.bfloat16, device="cuda")
    if MULTIPLIES and layout in ("compressed_channel", "static_tensor"):
        assert model.config.quantization == "fp8"
    if not MULTIPLIES or layout == "powers_of_two":
        assert model.config.quantization == "none"
    wanted = load_model(plain, dtype=torch.float32, device="cpu")
    logits, expected = (
        BranchRunner(one, max_num_seqs=1, max_model_len=64).logits(IDS) for one in (model, wanted)
    )
    assert (logits.cpu().float() - expected).norm() / expected.norm() < 0.15


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ALL_MODELS)
def test_weights_become_fp8_when_they_are_loaded(name: str, dtype: torch.dtype) -> None:
    """On any GPU, with the weights of the CPU; experts need kernels with fp8. Products of fp8 are those of bfloat16."""
    wanted = load_model(MODELS / name, dtype=torch.float32, device="cpu", quantization="fp8")
    options = {"dtype": dtype, "device": "cuda", "quantization": "fp8"}
    if wanted.config.experts is not None and not MULTIPLIES:
        with pytest.raises(SettingsError, match=r"model\.quantization"):
            load_model(MODELS / name, **options)
        return
    model = load_model(MODELS / name, **options)
    assert model.config == wanted.config
    for key, parameter in wanted.named_parameters():
        if parameter.dtype == fp8.FP8:
            assert torch.equal(model.get_parameter(key).cpu().float(), parameter.float()), key
    logits, expected = (
        BranchRunner(one, max_num_seqs=1, max_model_len=64).logits(IDS) for one in (model, wanted)
    )
    most = 0.05 if dtype == torch.float32 else 0.3
    assert (logits.cpu().float() - expected).norm() / expected.norm() < most


@pytest.mark.parametrize("layout", ["compressed_channel", "blocks"])
def test_a_checkpoint_in_fp8_decodes_every_position_the_same_twice(layout: str, tmp_path: Path) -> None:
    stored, _ = save_fp8("dream-tiny-4l", LAYOUTS[layout], tmp_path)
    engine = LocalEngine.from_pretrained(stored, device="cuda", max_model_len=256)
    mask, settings = engine.vocabulary.mask_token_id, SETTINGS["two_phase"]
    results = engine.generate(PROMPTS, settings)
    assert all(mask not in result.token_ids for result in results)
    assert [r.token_ids for r in engine.generate(PROMPTS, settings)] == [r.token_ids for r in results]
