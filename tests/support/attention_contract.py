"""What every attention backend must do, wherever it runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from lopa_ray.execution.attention import AttentionBackend
from lopa_ray.execution.attention_backends import TOLERANCE
from lopa_ray.execution.attention_trial import SMALL_STEP, AttentionTrial
from lopa_ray.execution.lane import Lane
from support.tiny_model import load_tiny_model


def lane(slot: int, start: int, *segments: tuple[int, int]) -> Lane:
    """Rows from `start` to the end of the last segment."""
    return Lane(slot, start, np.zeros(segments[-1][0] - start, np.int64), segments)


CASES = (
    # Query heads, KV heads, lanes
    (4, 2, (lane(0, 0, (1, 1)),)),
    (4, 2, SMALL_STEP),
    (4, 4, (lane(1, 0, (16, 16)),)),
    (6, 1, (lane(3, 57, (60, 60), (90, 90)), *SMALL_STEP)),
    (4, 2, (lane(0, 0, (4, 4), (7, 7)), lane(1, 21, (24, 24), (30, 40)))),  # behind it are cached ones
)

CAPACITY = 256


def check_backend(backend: AttentionBackend, device: str, dtype: torch.dtype, dim: int = 16) -> None:
    """It computes the formula, with as many or fewer KV heads than query heads."""
    for heads, kv_heads, lanes in CASES:
        config = dataclasses.replace(
            load_tiny_model().config, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim
        )
        trial = AttentionTrial(backend, config, dtype, torch.device(device), lanes, CAPACITY)
        attended, wanted = trial.run(), trial.formula()
        assert attended.shape == wanted.shape and attended.dtype == dtype
        torch.testing.assert_close(attended.float(), wanted, atol=TOLERANCE[dtype], rtol=0)
