"""Selects the dtype for `model.dtype` auto: bfloat16 if the device multiplies it faster than float32, else float32."""

from __future__ import annotations

import logging
import time

import torch

from lopa_ray.execution.device import Device
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.weights import DTYPE_NAMES

ROWS = 160
"""Rows of a step of usual size."""

REPEATS = 5
"""Number of timed products per dtype."""

CLEARLY_FASTER = 1.1
"""The speed of bfloat16 relative to float32 above which it is selected. It is above 1, as bfloat16 is less precise."""

_log = logging.getLogger("lopa.dtype")


def resolve_dtype(device: Device, config: ModelConfig) -> str:
    """The name of the dtype for the model, or the shard, of that configuration.

    Raises SettingsError if the device cannot be used.
    """
    seconds = product_seconds(device.torch_device(), config)
    wide, narrow = seconds[torch.float32], seconds[torch.bfloat16]
    chosen = torch.bfloat16 if wide > CLEARLY_FASTER * narrow else torch.float32
    _log.info(
        "dtype on %s: %s (a product takes %.0f µs in float32 and %.0f µs in bfloat16)",
        device.name,
        DTYPE_NAMES[chosen],
        1e6 * wide,
        1e6 * narrow,
    )
    return DTYPE_NAMES[chosen]


@torch.inference_mode()
def product_seconds(where: torch.device, config: ModelConfig) -> dict[torch.dtype, float]:
    """Seconds of a matmul of a step's rows with a weight of the MLP, by dtype, with the current threads of torch.

    The time is the least of `REPEATS` products. The dtypes alternate.
    """
    factors = {
        dtype: (
            torch.ones(ROWS, config.hidden_size, dtype=dtype, device=where),
            torch.ones(config.intermediate_size, config.hidden_size, dtype=dtype, device=where),
        )
        for dtype in (torch.float32, torch.bfloat16)
    }
    seconds = dict.fromkeys(factors, float("inf"))
    for repeat in range(1 + REPEATS):
        for dtype, (rows, weight) in factors.items():
            began = time.perf_counter()
            torch.nn.functional.linear(rows, weight)[0, 0].item()  # item() waits for the device
            if repeat:  # the first call may load or compile a kernel
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds
