"""Attention kernels: unmasked attention of a few query rows over a run of keys, behind one protocol.

Every mask of the decoders is made of such calls (see `attention.py`), so that is all a kernel has to do.

Shape suffixes: T query rows, H query heads, K KV heads, L keys, E head dim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.errors import SettingsError
from lopa_ray.execution import npu
from lopa_ray.execution.device import Device
from lopa_ray.model.config import ModelConfig

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""How far a kernel may be from fp32 on normally distributed input."""

_log = logging.getLogger("lopa.kernels")


class AttentionKernel(Protocol):
    """q [T, H, E] over keys and values [K, L, E], which may be views of a cache; returns [T, H, E]."""

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Softmax attention scaled by E ** -0.5; query head h reads KV head h * K // H."""
        ...


def sdpa(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """torch's own, which picks among its kernels (on CUDA, FlashAttention is one of them).

    The query heads of a KV head are stacked as further rows of it: grouped-query
    attention without repeating keys, on every device. The queries are copied to memory of
    their own, since CPU kernels round by alignment and a view's depends on what is packed before it.
    """
    rows, heads, dim = q.shape
    groups = keys.shape[0]
    stacked = q.view(rows, groups, -1, dim).permute(1, 2, 0, 3).clone(memory_format=torch.contiguous_format)
    stacked = stacked.view(1, groups, -1, dim)
    mixed = F.scaled_dot_product_attention(stacked, keys[None], values[None])
    return mixed.view(groups, heads // groups, rows, dim).permute(2, 0, 1, 3).reshape(rows, heads, dim)


def flash_attn(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The package flash-attn: half precision on CUDA."""
    function: Callable[..., Tensor] = import_module("flash_attn").flash_attn_func
    return function(q[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None])[0]


def flex(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """torch's flex attention, compiled at the first call, which takes a compiler and up to minutes."""
    mixed: Tensor = _compiled_flex()(q.transpose(0, 1)[None], keys[None], values[None], enable_gqa=True)
    return mixed[0].transpose(0, 1)


@cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


KERNELS: dict[str, AttentionKernel] = {
    "sdpa": sdpa,
    "flash_attn": flash_attn,
    "flex": flex,
    "npu": npu.attention,
}


def reference_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The formula, in fp32: what every kernel is held against."""
    groups = q.shape[1] // keys.shape[0]
    k, v = (x.float().repeat_interleave(groups, dim=0) for x in (keys, values))
    weights = torch.einsum("the,hle->htl", q.float(), k).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("htl,hle->the", weights, v)


def select_kernel(name: str, device: Device, config: ModelConfig, dtype: torch.dtype) -> AttentionKernel:
    """The kernel that `model.attention` names, tried out; with auto the device's first one that works.

    Raises SettingsError if the named one does not run there, or computes something else.
    """
    reasons: list[str] = []
    for each in device.attention_kernels if name == "auto" else (name,):
        reason = _failure_reason(each, device, config, dtype)
        if reason is None:
            reason_chosen = "; ".join(reasons) or ("first choice" if name == "auto" else "as set")
            _log.info("attention on %s: %s (%s)", device.name, each, reason_chosen)
            return KERNELS[each]
        reasons.append(reason)
    raise SettingsError(
        f"model.attention: got {name!r}, but {'; '.join(reasons)}; "
        f"allowed on {device.name}: auto, {', '.join(device.attention_kernels)}; use auto"
    )


def _failure_reason(name: str, device: Device, config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why the kernel cannot be used, found by using it on 5 rows over 21 keys; None if it can."""
    if name not in device.attention_kernels:
        return f"{name} is not for {device.name}"
    draw = torch.Generator().manual_seed(0)
    cached = (config.num_kv_heads, 32, config.head_dim)
    shapes = ((5, config.num_heads, config.head_dim), cached, cached)
    q, k, v = (torch.randn(shape, generator=draw).to(device.torch_name, dtype) for shape in shapes)
    try:
        with torch.inference_mode():
            found = KERNELS[name](q, k[:, :21], v[:, :21]).float()
    # Whatever a kernel, its import or its compiler raises is the reason that is asked for.
    except Exception as error:
        return f"{name} fails with {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    off = (found - reference_attention(q, k[:, :21], v[:, :21])).abs().max().item()
    return None if off <= TOLERANCE[dtype] else f"{name} is off by {off:.1g}"
