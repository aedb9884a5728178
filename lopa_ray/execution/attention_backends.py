"""Attention kernels: unmasked attention of a few query rows over a run of keys, behind one protocol.

Every mask of the decoders is made of such calls (see `attention.py`), so that is all a kernel has to do.

Shape suffixes: T query rows, H query heads, K KV heads, L keys, E head dim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from lopa_ray.errors import SettingsError
from lopa_ray.execution import npu
from lopa_ray.execution.attention import AttentionBackend, LaneAttention, PackedAttention
from lopa_ray.execution.attention_trial import try_attention
from lopa_ray.execution.device import Device
from lopa_ray.kernels.sdpa import sdpa
from lopa_ray.model.config import ModelConfig

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""How far a kernel may be from fp32 on normally distributed input."""

_log = logging.getLogger("lopa.kernels")


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


BACKENDS: dict[str, AttentionBackend] = {
    "sdpa": LaneAttention(sdpa),
    "flash_attn": LaneAttention(flash_attn),
    "flex": LaneAttention(flex),
    "npu": LaneAttention(npu.attention),
    "triton": PackedAttention(),
    "reference": PackedAttention(),
}


def select_backend(name: str, device: Device, config: ModelConfig, dtype: torch.dtype) -> AttentionBackend:
    """The backend that `model.attention` names, tried out; with auto the device's first one that works.

    Raises SettingsError if the named one does not run there, or computes something else.
    """
    reasons: list[str] = []
    for each in device.attention_backends if name == "auto" else (name,):
        reason = _failure_reason(each, device, config, dtype)
        if reason is None:
            reason_chosen = "; ".join(reasons) or ("first choice" if name == "auto" else "as set")
            _log.info("attention on %s: %s (%s)", device.name, each, reason_chosen)
            return BACKENDS[each]
        reasons.append(reason)
    raise SettingsError(
        f"model.attention: got {name!r}, but {'; '.join(reasons)}; "
        f"allowed on {device.name}: auto, {', '.join(device.attention_backends)}; use auto"
    )


def _failure_reason(name: str, device: Device, config: ModelConfig, dtype: torch.dtype) -> str | None:
    """Why the backend cannot be used, found by using it; None if it can."""
    if name not in device.attention_backends:
        return f"{name} is not for {device.name}"
    try:
        found, wanted = try_attention(BACKENDS[name], config, dtype, torch.device(device.torch_name))
    # Whatever a kernel, its import or its compiler raises is the reason that is asked for.
    except Exception as error:
        return f"{name} fails with {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    off = (found.float() - wanted).abs().max().item()
    return None if off <= TOLERANCE[dtype] else f"{name} is off by {off:.1g}"
