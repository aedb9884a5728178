"""Triton kernel of `choose_experts`: a program chooses the experts of one row, one after another."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from lopa_ray.kernels import choose_experts

MIN_TOTAL = tl.constexpr(choose_experts.MIN_TOTAL)

NUM_WARPS = 1
"""A row has a few hundred scores, and each choice is a reduction of them all, which is fastest within one warp."""


@triton.jit
def _choose_experts(
    logits,
    bias,
    chosen,
    weights,
    scale,
    bias_stride,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    KEPT_GROUPS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
    PLACE_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUP_BLOCK)
    within = tl.arange(0, SIZE_BLOCK)[None, :]
    expert = group[:, None] * GROUP_SIZE + within
    there = (group < GROUPS)[:, None] & (within < GROUP_SIZE)
    logit = tl.load(logits + row * (GROUPS * GROUP_SIZE) + expert, mask=there, other=float("-inf"))
    if HAS_BIAS:
        score = 1.0 / (1.0 + tl.exp(-logit))
        ranked = score + tl.load(bias + row * bias_stride + expert, mask=there, other=0.0)
    else:
        score = tl.exp(logit - tl.max(tl.max(logit, 1), 0))
        score = score / tl.sum(tl.sum(score, 1), 0)
        ranked = score
    # A row of NaN has experts, too: the first experts.
    ranked = tl.where(there & (ranked == ranked), ranked, float("-inf"))
    if GROUPS > 1:
        first = tl.max(ranked, 1)
        first_at = tl.min(tl.where(ranked == first[:, None], within, SIZE_BLOCK), 1)
        second = tl.max(tl.where(within != first_at[:, None], ranked, float("-inf")), 1)
        total = first + second
        left = group < GROUPS
        for _ in tl.static_range(KEPT_GROUPS):
            best = tl.max(tl.where(left, total, float("-inf")), 0)
            left = left & (group != tl.min(tl.where(left & (total == best), group, GROUP_BLOCK), 0))
        ranked = tl.where(left[:, None], float("-inf"), ranked)
    open = there
    place = tl.arange(0, PLACE_BLOCK)
    picked = tl.zeros((PLACE_BLOCK,), tl.int32)
    weight = tl.zeros((PLACE_BLOCK,), tl.float32)
    for at in tl.static_range(PER_TOKEN):
        best = tl.max(tl.max(tl.where(open, ranked, float("-inf")), 1), 0)
        candidates = tl.where(open & (ranked == best), expert, GROUPS * GROUP_SIZE)
        index = tl.min(tl.min(candidates, 1), 0)
        is_chosen = there & (expert == index)
        picked = tl.where(place == at, index, picked)
        weight = tl.where(place == at, tl.sum(tl.sum(tl.where(is_chosen, score, 0.0), 1), 0), weight)
        open = open & (is_chosen == 0)
    weight = weight / (tl.sum(weight, 0) + MIN_TOTAL) * scale
    inside = place < PER_TOKEN
    tl.store(chosen + row * PER_TOKEN + place, picked.to(tl.int64), mask=inside)
    tl.store(weights + row * PER_TOKEN + place, weight, mask=inside)


def launch(
    logits: Tensor, bias: Tensor | None, per_token: int, groups: int, kept_groups: int, scale: float
) -> tuple[Tensor, Tensor]:
    """See `lopa_ray.kernels.choose_experts`."""
    logits = logits.contiguous()
    rows, experts = logits.shape
    weights = logits.new_empty(rows, per_token)
    chosen = weights.new_empty(rows, per_token, dtype=torch.int64)
    given = constants(experts, per_token, groups, kept_groups, has_bias=bias is not None)
    tensors = logits, logits if bias is None else bias, chosen, weights
    stride = bias.stride(0) if bias is not None and bias.ndim == 2 else 0
    _choose_experts[(rows,)](*tensors, scale, stride, **given, num_warps=NUM_WARPS)
    return chosen, weights


def constants(
    experts: int, per_token: int, groups: int, kept_groups: int, *, has_bias: bool
) -> dict[str, int]:
    size = experts // groups
    return {
        "HAS_BIAS": has_bias,
        "GROUPS": groups,
        "GROUP_SIZE": size,
        "KEPT_GROUPS": kept_groups,
        "PER_TOKEN": per_token,
        "GROUP_BLOCK": triton.next_power_of_2(groups),
        "SIZE_BLOCK": triton.next_power_of_2(size),
        "PLACE_BLOCK": triton.next_power_of_2(per_token),
    }
