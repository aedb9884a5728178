"""Mixtures of experts: recorded routing, ties, rows that do not depend on their neighbours, and how weights load."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels.grouped_matmul import _has_grouped_mm, grouped_matmul
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from lopa_ray.model.checkpoint.tensor_files import TensorFiles
from lopa_ray.model.experts import MixtureOfExperts
from lopa_ray.model.experts_config import ExpertsConfig
from lopa_ray.model.native_implementation import load_model
from lopa_ray.model.router import Router
from support.checkpoints import edit_json
from support.paths import GOLDEN, MODELS, ROOT
from support.tiny_model import load_tiny_model, random_model

ROUTED = {"sdar_moe": "sdar-moe-tiny-3l", "llada2": "llada2-tiny-3l"}


@pytest.mark.parametrize("absent", [..., None], ids=["absent", "null"])
def test_what_a_configuration_leaves_out_is_what_the_published_class_has(
    absent: object, tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text((MODELS / ROUTED["llada2"] / "config.json").read_text())
    keys = ("partial_rotary_factor", "routed_scaling_factor", "num_shared_experts", "first_k_dense_replace")
    edit_json(file, **dict.fromkeys(keys, absent), rope_scaling={"type": "default"})
    config = load_config(tmp_path)
    assert config.experts is not None
    assert (config.partial_rotary_factor, config.experts.scale) == (0.5, 2.5)
    assert (config.experts.shared, config.experts.dense_layers) == (0, 0)
    file.write_text((MODELS / ROUTED["sdar_moe"] / "config.json").read_text())
    edit_json(file, norm_topk_prob=absent)
    with pytest.raises(CheckpointError, match=r"norm_topk_prob.*supported with True only"):
        load_config(tmp_path)


@pytest.mark.parametrize("folder", ROUTED)
def test_rows_go_to_the_recorded_experts(folder: str) -> None:
    model = load_tiny_model(ROUTED[folder])
    routed: list[tuple[Tensor, Tensor]] = []
    for layer in model.layers:
        if isinstance(layer.mlp, MixtureOfExperts):
            layer.mlp.router.register_forward_hook(lambda *call: routed.append(call[2]))
    recorded = load_file(GOLDEN / folder / f"{folder}_forward_router.safetensors")
    cases = map(json.loads, (GOLDEN / folder / f"{folder}_forward_cases.jsonl").read_text().splitlines())
    compared = 0
    for step in (case["steps"][0] for case in cases if "router" in case["steps"][0]):
        ids, block = step["input"], step["block"]
        segments = tuple((stop, stop) for stop in range(block, len(ids) + 1, block))
        routed.clear()
        BranchRunner(model, max_num_seqs=1, max_model_len=256).logits(ids, segments=segments)
        assert len(routed) == len(step["router"])
        for stem, (experts, weights) in zip(step["router"], routed, strict=True):
            experts, order = experts[: len(ids)].sort()
            wanted, wanted_order = recorded[f"{stem}.experts"].long().sort()
            assert torch.equal(experts, wanted)
            torch.testing.assert_close(
                weights[: len(ids)].gather(1, order),
                recorded[f"{stem}.weights"].gather(1, wanted_order),
                atol=1e-4,
                rtol=0,
            )
            compared += len(ids)
    assert compared > 50


def test_ties_go_to_the_lowest_experts_and_groups() -> None:
    x = torch.ones(3, 4)
    softmax = Router(4, ExpertsConfig("softmax", 8, 3, 16))
    sigmoid = Router(4, ExpertsConfig("sigmoid", 8, 3, 16, groups=4, kept_groups=2, scale=2.5))
    for router in (softmax, sigmoid):
        torch.nn.init.zeros_(router.weight)
    assert sigmoid.expert_bias is not None
    torch.nn.init.zeros_(sigmoid.expert_bias)
    for router, total in ((softmax, 1.0), (sigmoid, 2.5)):
        chosen, weights = router(x)
        assert chosen.tolist() == [[0, 1, 2]] * 3
        torch.testing.assert_close(weights, torch.full((3, 3), total / 3))
    # The bias chooses, and has no part in the weights.
    with torch.no_grad():
        sigmoid.expert_bias[6] = 0.5
    chosen, weights = sigmoid(x)
    assert chosen.tolist() == [[6, 0, 1]] * 3
    torch.testing.assert_close(weights, torch.full((3, 3), 2.5 / 3))


def test_routing_is_fp32_in_half_precision() -> None:
    model = random_model(load_config(MODELS / "llada2-tiny-3l"), 0, torch.bfloat16, "cpu")
    experts = model.layers[1].mlp
    assert isinstance(experts, MixtureOfExperts)
    assert experts.router.weight.dtype == torch.float32
    assert experts.router(torch.randn(2, 64, dtype=torch.bfloat16))[1].dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_is_that_of_each_rows_expert(dtype: torch.dtype) -> None:
    counts = [0, 3, 16, 0, 21, 1]
    ends = torch.tensor(counts).cumsum(0).to(torch.int32)
    x, weight = torch.randn(sum(counts), 24).to(dtype), torch.randn(6, 40, 24).to(dtype)
    owner = torch.repeat_interleave(torch.tensor(counts))
    wanted = torch.einsum("si,soi->so", x.float(), weight[owner].float())
    products = [grouped_matmul(x, weight, ends)]
    if hasattr(F, "grouped_mm"):
        products.append(F.grouped_mm(x, weight.mT, offs=ends))
    for product in products:
        torch.testing.assert_close(
            product.float(), wanted, atol=0.2 if dtype == torch.bfloat16 else 1e-5, rtol=0
        )
    ints = torch.randint(-127, 128, weight.shape, dtype=torch.int8)
    rows = torch.randint(-127, 128, x.shape, dtype=torch.int8)
    exact = torch.einsum("si,soi->so", rows.int(), ints[owner].int())
    assert torch.equal(grouped_matmul(rows, ints, ends), exact)


@pytest.mark.parametrize(
    ("major", "dtype", "width", "has_it"),
    [
        (8, torch.bfloat16, 24, False),
        (9, torch.bfloat16, 24, True),
        (10, torch.bfloat16, 24, True),
        (12, torch.bfloat16, 24, False),
        (9, torch.float16, 24, False),
        (9, torch.bfloat16, 20, False),
    ],
)
def test_torchs_product_is_called_where_it_does_not_wait(
    major: int, dtype: torch.dtype, width: int, has_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(major=major)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(F, "grouped_mm", None, raising=False)
    x, weight = torch.empty(3, width, dtype=dtype), torch.empty(2, 8, width, dtype=dtype)
    assert _has_grouped_mm(x, weight) == has_it


def test_a_torch_without_the_product_has_the_kernel_of_this_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=9))
    monkeypatch.delattr(F, "grouped_mm", raising=False)
    x, weight = torch.empty(3, 24, dtype=torch.bfloat16), torch.empty(2, 8, 24, dtype=torch.bfloat16)
    assert not _has_grouped_mm(x, weight)


@torch.inference_mode()
@pytest.mark.parametrize("quantization", ["none", "w8", "w8a8"])
def test_a_row_has_the_same_bits_whatever_is_beside_it(quantization: str) -> None:
    """Its experts get other numbers of rows in every company, and it lies elsewhere among them."""
    torch.set_num_threads(1)
    config = load_config(MODELS / "llada2-tiny-3l")
    shape = dataclasses.replace(config.experts, count=40, groups=4, per_token=5, width=27)  # type: ignore[type-var]
    config = dataclasses.replace(config, experts=shape, hidden_size=52, quantization=quantization)
    layer = random_model(config, 0, torch.float32, "cpu").layers[1]
    rows = torch.randn(160, 52, generator=torch.Generator().manual_seed(0))
    whole = layer.mlp(rows)
    draw = torch.Generator().manual_seed(1)
    for size in (16, 16, 48, 96):
        picked = torch.randperm(160, generator=draw)[:size]
        assert torch.equal(layer.mlp(rows[picked]), whole[picked])


@pytest.mark.medium
@pytest.mark.parametrize("quantization", ["w8", "w8a8"])
def test_int8_experts_are_saved_and_load_back(quantization: str, tmp_path: Path) -> None:
    model = load_tiny_model("llada2-tiny-3l", quantization)  # type: ignore[arg-type]
    save_model(model, tmp_path, dtype=torch.float32)
    names = load_file(tmp_path / "model.safetensors")
    assert names["model.layers.1.mlp.experts.15.up_proj.weight"].dtype == torch.int8
    assert names["model.layers.1.mlp.experts.15.up_proj.weight_scale"].shape == (16,)
    again = load_model(tmp_path, dtype=torch.float32, device="cpu")
    # Routing is not quantised: with the same rows a layer goes to the same experts, and loses little.
    rows = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    mixed, wanted = (model_of.layers[1].mlp(rows) for model_of in (again, load_tiny_model("llada2-tiny-3l")))
    assert 0 < (mixed - wanted).norm() / wanted.norm() < 0.03
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts_per_tok": 9}, "9 of 16 experts per token, from 2 of 4 groups"),
        ({"n_group": 3}, "16 experts in 3 groups"),
        ({"expert_capacity": 48}, "4 of 48 experts per block, of 16"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor = 1.5"),
        ({"num_experts": None}, "no num_experts"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((MODELS / "llada2-tiny-3l" / "config.json").read_text())
    edit_json(
        tmp_path / "config.json", **{key: ... if value is None else value for key, value in changes.items()}
    )
    with pytest.raises(CheckpointError, match=said):
        load_config(tmp_path)


@pytest.fixture(scope="module")
def many_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of thousands of tensors, with a small one beside it."""
    folder = tmp_path_factory.mktemp("experts")
    config = load_config(MODELS / "llada2-tiny-3l")
    shape = dataclasses.replace(config.experts, count=256, width=64, groups=8, kept_groups=4)  # type: ignore[type-var]
    wide = dataclasses.replace(config, num_layers=6, hidden_size=128, num_heads=8, experts=shape)
    for name, config_of in (("wide", wide), ("small", config)):
        save_model(random_model(config_of, 0, torch.float32, "cpu"), folder / name, dtype=torch.float32)
    return folder / "wide"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantization", "rank", "size", "least"),
    [("none", 0, 1, 120e6), ("none", 1, 2, 60e6), ("w8a8", 1, 2, 16e6)],
)
def test_thousands_of_tensors_load_within_little_more_than_their_memory(
    many_experts: Path, quantization: str, rank: int, size: int, least: float
) -> None:
    """In a process of its own, whose memory nothing else has touched. Names and headers take 5 KB per tensor at most,
    which matters for tensors as small as these."""
    tensors = len(TensorFiles.scan([many_experts / "model.safetensors"]).shapes)
    assert tensors > 3800
    program = ROOT / "tests" / "programs" / "load_experts.py"
    done = subprocess.run(
        [sys.executable, str(program), str(many_experts), quantization, str(rank), str(size)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    held, taken = map(int, done.stdout.split())
    assert held > least
    assert taken < 1.2 * held + (5000 * tensors if (quantization, size) != ("none", 1) else 0)
