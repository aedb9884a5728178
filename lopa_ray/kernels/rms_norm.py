"""Root-mean-square norm of rows, alone or with the residual sum before it."""

from __future__ import annotations

import torch
from torch import Tensor

from lopa_ray.kernels.operators import define, is_differentiable


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows x [R, D], normed in fp32 along D, rounded to the dtype of x and scaled by weight [D]."""
    out: Tensor = reference_rms_norm(x, weight, eps) if is_differentiable() else _rms_norm(x, weight, eps)
    return out


def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum x + delta, and its `rms_norm`, [R, D] each."""
    operator = _reference_add if is_differentiable() else _add_rms_norm
    total, normed = operator(x, delta, weight, eps)
    return total, normed


def reference_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in torch's operations, for x [..., D]."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _reference_add(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + delta
    return total, reference_rms_norm(total, weight, eps)


def _fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


def _fake_add(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


_rms_norm = define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", reference_rms_norm, _fake)
_add_rms_norm = define(
    "add_rms_norm(Tensor x, Tensor delta, Tensor weight, float eps) -> (Tensor, Tensor)",
    _reference_add,
    _fake_add,
)
