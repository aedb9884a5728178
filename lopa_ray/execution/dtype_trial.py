"""What `model.dtype` auto stands for: bfloat16 where the device multiplies it faster than float32, else float32."""

from __future__ import annotations

import logging
import time

import torch

from lopa_ray.execution.device import Device
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.weights import DTYPE_NAMES

ROWS = 160
"""Of a step of usual size."""

REPEATS = 5

CLEARLY_FASTER = 1.1
"""How many times as fast bfloat16 has to be: it rounds more, so a tie goes to float32."""

_log = logging.getLogger("lopa.dtype")


def resolve_dtype(device: Device, config: ModelConfig) -> str:
    """The name of the dtype for the model, or shard, of that configuration. Raises SettingsError if the device cannot
    be used."""
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
    """Of the rows of a step times a weight of the MLP, with the threads that torch has now: the least of several, taken
    in turns."""
    # Models that only transformers knows name no width.
    width = config.intermediate_size or 4 * config.hidden_size
    factors = {
        dtype: (
            torch.ones(ROWS, config.hidden_size, dtype=dtype, device=where),
            torch.ones(width, config.hidden_size, dtype=dtype, device=where),
        )
        for dtype in (torch.float32, torch.bfloat16)
    }
    seconds = dict.fromkeys(factors, float("inf"))
    for repeat in range(1 + REPEATS):
        for dtype, (rows, weight) in factors.items():
            began = time.perf_counter()
            torch.nn.functional.linear(rows, weight)[0, 0].item()  # the host waits for the device
            if repeat:  # the first call may load or compile a kernel
                seconds[dtype] = min(seconds[dtype], time.perf_counter() - began)
    return seconds
