"""Rotation: what turns queries and keys by their positions. Shape suffixes: R rows, T rotated dims of a head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.yarn import Yarn


class Rotation(NamedTuple):
    """Of the rows of a forward, in the model's dtype."""

    cos: Tensor
    """[R, 1, T]."""
    sin: Tensor
    """[R, 1, T]."""
    query_scale: Tensor | None
    """[R, 1, 1]: what rotated queries are multiplied by; None: 1."""

    @classmethod
    def of(cls, config: NativeConfig, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation at int64 positions [R], computed in fp32."""
        cos, sin = rope_table(config, positions)
        scale = None if config.yarn is None else query_scale(config.yarn, positions).to(dtype)
        return cls(cos.to(dtype), sin.to(dtype), scale)


def rope_table(config: NativeConfig, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, fp32 [R, 1, T], of the rotary embedding at int positions [R]."""
    dim, theta = config.rotary_dim, config.rope_theta
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
    frequencies = 1.0 / theta**exponents
    if config.yarn is not None:
        low, high = config.yarn.ramp(dim, theta)
        pairs = torch.arange(dim // 2, dtype=torch.float32, device=positions.device)
        stretched = ((pairs - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies / config.yarn.factor * stretched + frequencies * (1 - stretched)
    angles = positions[:, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos(), angles.sin()


def query_scale(yarn: Yarn, positions: Tensor) -> Tensor:
    """What queries at int positions [R] are multiplied by, fp32 [R, 1, 1]."""
    times = torch.floor(positions.float() / yarn.original_max_position_embeddings)
    return (1.0 + yarn.llama_4_scaling_beta * torch.log1p(times))[:, None, None]
