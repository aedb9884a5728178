"""Splits a fused QKV projection, and applies head norms (where a model has them) and rotary position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

from lopa_ray.kernels.operators import operator
from lopa_ray.kernels.rms_norm import reference_rms_norm


def rotate_qkv(
    qkv: Tensor,
    num_heads: int,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    kv: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [R, H + 2K, E] → q [R, H, E] and k [R, K, E], both rotated, and v [R, K, E]. `cos` and `sin` [R, 1, T] belong
    to each row's position, in the half-split layout of Llama and Qwen2, for the first T dims of each head. The other
    dims are not rotated. If the weights [E] are given, queries and keys are RMS-normed before the rotation. If `kv` [2,
    R, K, E] is given, k and v are written to it. All tensors have one floating dtype."""
    if kv is None:
        kv = qkv.new_empty(2, qkv.shape[0], (qkv.shape[1] - num_heads) // 2, qkv.shape[2])
    return _rotate_qkv(qkv, num_heads, cos, sin, q_weight, k_weight, eps, kv), kv[0], kv[1]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    size = cos.shape[-1]
    if size < x.shape[-1]:
        return torch.cat((_rotate(x[..., :size], cos, sin), x[..., size:]), dim=-1)
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


@operator(
    lambda qkv, num_heads, *_: qkv.new_empty(len(qkv), num_heads, qkv.shape[2]), launches=1, mutates=("kv",)
)
def _rotate_qkv(
    qkv: Tensor,
    num_heads: int,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    kv: Tensor,
) -> Tensor:
    turned, v = qkv.split((num_heads + kv.shape[2], kv.shape[2]), dim=1)
    if q_weight is not None and k_weight is not None:
        q, k = turned.split((num_heads, kv.shape[2]), dim=1)
        turned = torch.cat(
            (reference_rms_norm(q, q_weight, eps), reference_rms_norm(k, k_weight, eps)), dim=1
        )
    turned = _rotate(turned, cos, sin)
    kv[0].copy_(turned[:, num_heads:])
    kv[1].copy_(v)
    return turned[:, :num_heads]
