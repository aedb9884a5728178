"""What a step takes at least on a device: its bytes at the rate of a copy, or its operations at that of a matmul."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import nn

from lopa_lab.bench.clock import Clock, TimedCall
from lopa_lab.bench.step_plans import StepSize
from lopa_ray.execution.runner import BranchRunner

REPEATS = 9

COPY_BYTES = {"cpu": 2**28}
"""Bytes that are copied, by kind of device: more than any cache holds."""
MATMUL_SIZES = {"cpu": (256, 512, 1024)}
"""Rows and columns of the matrices that are multiplied; the best rate counts."""
ACCELERATOR_COPY_BYTES, ACCELERATOR_MATMUL_SIZES = 2**30, (4096, 8192)


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """The measured rates of a device."""

    bytes_per_s: float
    """Read and written by a copy."""
    operations_per_s: float
    """Multiplications and additions of a square matmul."""

    @classmethod
    @torch.inference_mode()
    def measure(cls, device: torch.device, dtype: torch.dtype) -> DeviceRates:
        """Measure `device`, with products in `dtype`, with the threads that torch has now."""
        source = torch.zeros(
            COPY_BYTES.get(device.type, ACCELERATOR_COPY_BYTES), dtype=torch.uint8, device=device
        )
        target = torch.empty_like(source)
        sizes = MATMUL_SIZES.get(device.type, ACCELERATOR_MATMUL_SIZES)
        matrices = [torch.randn(size, size, device=device).to(dtype) for size in sizes]
        products = [TimedCall(partial(torch.matmul, matrix, matrix)) for matrix in matrices]
        copy_ms, *product_ms = Clock(device).medians_ms(
            [TimedCall(lambda: target.copy_(source)), *products], REPEATS
        )
        rates = [2e3 * size**3 / ms for size, ms in zip(sizes, product_ms, strict=True)]
        return cls(2e3 * source.numel() / copy_ms, max(rates))


def floor_ms(runner: BranchRunner, size: StepSize, rates: DeviceRates) -> float | None:
    """Milliseconds: the larger one of both bounds; None for experts, of which a step need not read or multiply all.

    Bytes: the weights but for the embedding, and each request's prefix, once. Operations: products of all rows with
    these weights, and of queries with the keys and values that they see.
    """
    embedding = runner.model.embed.weight
    tied = runner.model.lm_head.weight is embedding
    parameters = dict(cast(nn.Module, runner.model).named_parameters())
    if any("expert" in name for name in parameters):
        return None
    weights = [weight for weight in parameters.values() if tied or weight is not embedding]
    read = sum(weight.numel() * weight.element_size() for weight in weights)
    read += size.requests * size.prefix * runner.position_bytes
    config = runner.model.shard_config
    seen = size.prefix + size.window
    attention = 4 * size.rows * seen * config.num_layers * config.num_heads * config.head_dim
    operations = 2 * size.rows * sum(weight.numel() for weight in weights) + attention
    return 1000 * max(read / rates.bytes_per_s, operations / rates.operations_per_s)
