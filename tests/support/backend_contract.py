"""What every attention backend must do, wherever it runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from lopa_ray.execution.attention_backends import BACKENDS, TOLERANCE
from lopa_ray.execution.attention_trial import LANES, try_attention
from lopa_ray.execution.lane import Lane
from support.tiny_model import load_tiny_model

CASES = (
    # Query heads, KV heads, head dim, lanes
    (4, 2, 16, (Lane(0, 0, np.zeros(1, np.int64), ((1, 1),)),)),
    (4, 2, 16, LANES),
    (4, 4, 16, (Lane(1, 0, np.zeros(16, np.int64), ((16, 16),)),)),
    (6, 1, 16, (Lane(2, 57, np.zeros(33, np.int64), ((60, 60), (90, 90))), *LANES)),
)


def check_backend(name: str, device: str, dtype: torch.dtype) -> None:
    """It computes the formula, with as many or fewer KV heads than query heads."""
    for heads, kv_heads, dim, lanes in CASES:
        config = dataclasses.replace(
            load_tiny_model().config, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim
        )
        found, wanted = try_attention(BACKENDS[name], config, dtype, torch.device(device), lanes, capacity=90)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), wanted, atol=TOLERANCE[dtype], rtol=0)
