"""Rotation: what turns queries and keys by their positions. Shape suffixes: R rows, T rotated dims of a head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lopa_ray.model.config import NativeConfig


class Rotation(NamedTuple):
    cos: Tensor  # [R, 1, T]
    sin: Tensor  # [R, 1, T]
    query_scale: Tensor | None  # [R, 1, 1]: what rotated queries are multiplied by; None: 1

    @classmethod
    def of(cls, config: NativeConfig, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation at int64 positions [R], computed in fp32."""
        dim, theta, yarn = config.rotary_dim, config.rope_theta, config.yarn
        exponents = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
        frequencies = 1.0 / theta**exponents
        scale: Tensor | None = None
        if yarn is not None:
            low, high = yarn.ramp(dim, theta)
            pairs = torch.arange(dim // 2, dtype=torch.float32, device=positions.device)
            stretched = ((pairs - low) / (high - low)).clamp(0, 1)
            frequencies = frequencies / yarn.factor * stretched + frequencies * (1 - stretched)
            times = torch.floor(positions.float() / yarn.original_max_position_embeddings)
            scale = (1.0 + yarn.llama_4_scaling_beta * torch.log1p(times))[:, None, None].to(dtype)
        angles = positions[:, None].float() * frequencies
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return cls(angles.cos().to(dtype), angles.sin().to(dtype), scale)
