"""Attention backends and operators on CUDA against the formula and their references."""

from __future__ import annotations

import importlib.util
import random

import pytest
import torch

from lopa_ray.execution.attention_backends import BACKENDS, TOLERANCE
from lopa_ray.kernels import (
    choose_experts,
    invariant_linear,
    rms_norm,
    rotary,
    row_scores,
    silu_mul,
    sort_rows,
    weighted_sum,
)
from lopa_ray.kernels.operators import triton_works
from support.attention_contract import check_backend

FLASH = {2: "flash_attn_2_cuda", 3: "flash_attn_interface", 4: "cutlass"}
"""Version → a module that comes with it alone."""

HALF = [dtype for dtype in TOLERANCE if dtype != torch.float32]
KERNELS = [
    *(("triton", 0, dtype, dim) for dtype in TOLERANCE for dim in (64, 96, 128, 256)),
    *(("sdpa", 0, dtype, 64) for dtype in TOLERANCE),
    *(("flash_attn", at, dtype, 128) for at in range(3) for dtype in HALF),
]


@pytest.mark.parametrize(("name", "at", "dtype", "dim"), KERNELS, ids=str)
def test_a_backend_computes_the_formula(name: str, at: int, dtype: torch.dtype, dim: int) -> None:
    backend = BACKENDS[name][at]
    if name == "flash_attn" and importlib.util.find_spec(FLASH[backend.version]) is None:
        pytest.skip(f"flash-attn {backend.version} is not installed")
    check_backend(backend, "cuda", dtype, dim)


def test_triton_works() -> None:
    assert triton_works()


def close(result: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal but for the rounding of bf16."""
    torch.testing.assert_close(result.cpu().float(), wanted.float(), atol=2e-2, rtol=2e-2)


@torch.inference_mode()
def test_operators_compute_in_bf16_what_their_references_do_on_the_host() -> None:
    """The interpreter cannot show that: its products of bf16 are wrong."""
    torch.manual_seed(0)
    gate_up, weight = torch.randn(40, 2 * 1500).bfloat16(), torch.randn(3584).bfloat16()
    x, delta = torch.randn(2, 40, 3584).bfloat16()
    close(silu_mul.silu_mul(gate_up.cuda()), silu_mul.silu_mul(gate_up))
    results = rms_norm.add_rms_norm(x.cuda(), delta.cuda(), weight.cuda(), 1e-6)
    for result, wanted in zip(results, rms_norm.add_rms_norm(x, delta, weight, 1e-6), strict=True):
        close(result, wanted)
    qkv, (cos, sin) = torch.randn(40, 36, 128).bfloat16(), torch.randn(2, 40, 1, 128).bfloat16()
    for weights in ((None, None), tuple(torch.randn(2, 128).bfloat16())):
        there = [None if weight_or_none is None else weight_or_none.cuda() for weight_or_none in weights]
        results = rotary.rotate_qkv(qkv.cuda(), 28, cos.cuda(), sin.cuda(), *there, 1e-6)
        for result, wanted in zip(results, rotary.rotate_qkv(qkv, 28, cos, sin, *weights, 1e-6), strict=True):
            close(result, wanted)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_row_of_an_invariant_product_has_the_same_bits_among_any_others(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for outputs, inputs in ((3584, 3584), (152_064, 1024), (70, 130)):
        weight, bias = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype), torch.randn(outputs).to(dtype)
        x = torch.randn(617, inputs).to(dtype)
        on_device = [tensor.cuda() for tensor in (x, weight, bias)]
        whole = invariant_linear.invariant_linear(*on_device)
        close(whole[:32], torch.nn.functional.linear(x[:32].float(), weight.float(), bias.float()))
        for start, stop in ((0, 1), (5, 20), (100, 116), (300, 617)):
            part = invariant_linear.invariant_linear(on_device[0][start:stop], *on_device[1:])
            assert torch.equal(part, whole[start:stop])


@torch.inference_mode()
def test_rows_of_a_whole_vocabulary_are_scored_as_on_the_host() -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    logits = (torch.randn(64, 152_064) * 4).bfloat16()
    rows = [(draw.choice([1.0, 0.5]), draw.randrange(3), draw.random() < 0.2) for _ in range(64)]
    numbers = torch.tensor(rows, dtype=torch.float64)
    banned = torch.zeros(152_064, dtype=torch.bool)
    banned[151_643:] = True
    ending_ids = logits.argmax(-1, keepdim=True)
    ending_ids[::2] = -1
    wanted = row_scores.row_scores(logits, numbers, ending_ids, banned)
    scores = row_scores.row_scores(
        *(argument.cuda() for argument in (logits, numbers, ending_ids, banned))
    ).cpu()
    assert scores[:, 0].tolist() == wanted[:, 0].tolist()
    # The published epsilon is in the host's neg_entropy alone.
    torch.testing.assert_close(scores[:, 1:], wanted[:, 1:], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_routed_rows_are_those_of_the_host() -> None:
    """256 experts in 8 groups, of which a shard has some."""
    torch.manual_seed(0)
    logits, bias = torch.randn(300, 256), torch.randn(256) / 10
    given = {"per_token": 8, "groups": 8, "kept_groups": 4, "scale": 2.5}
    chosen, _ = choose_experts.choose_experts(logits.cuda(), bias.cuda(), **given)
    wanted, wanted_weights = choose_experts.choose_experts(logits, bias, **given)
    assert (chosen.cpu() == wanted).float().mean() > 0.999  # scores that are almost equal
    own = range(64, 128)
    rows, wanted_rows = sort_rows.sort_rows(wanted.cuda(), own, 256), sort_rows.sort_rows(wanted, own, 256)
    assert all(torch.equal(one.cpu(), other) for one, other in zip(rows, wanted_rows, strict=True))
    results = torch.randn(2400, 2048).bfloat16()
    added = weighted_sum.weighted_sum(results.cuda(), rows.places, wanted_weights.cuda(), rows.ends)
    close(added, weighted_sum.weighted_sum(results, wanted_rows.places, wanted_weights, wanted_rows.ends))
