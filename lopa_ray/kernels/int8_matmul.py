"""The product of int8 matrices, exact in int32: by torch's kernel for the device where it has one that is exact.

Shape suffixes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.kernels.int8 import INT8_MAX, exact_matmul
from lopa_ray.kernels.operators import failure

MIN_KERNEL_ROWS = 32  # CUDA's kernel takes more than 16 rows

_log = logging.getLogger("lopa.quantized")


def int8_matmul(a: Tensor, weight: Tensor) -> Tensor:
    """int8 [R, I] times the transpose of int8 [O, I] → exact int32 [R, O], by the device's kernel if it has one."""
    if not has_int8_kernel(a.device.type, *weight.shape):
        return exact_matmul(a, weight)
    rows = a.shape[0]
    if rows < MIN_KERNEL_ROWS:
        a = F.pad(a, (0, 0, 0, MIN_KERNEL_ROWS - rows))
    return torch._int_mm(a, weight.t())[:rows]


@cache
def has_int8_kernel(device: str, out_features: int, in_features: int) -> bool:
    """Whether torch's int8 product runs there for weights [O, I], and is exact. Tried once per shape, on the largest
    numbers: some kernels want multiples of 8, and kernels for CPUs without 8-bit dot products may saturate."""
    a = torch.full((MIN_KERNEL_ROWS, in_features), INT8_MAX, dtype=torch.int8, device=device)
    weight = torch.full((out_features, in_features), -INT8_MAX, dtype=torch.int8, device=device)
    largest = -INT8_MAX * INT8_MAX * in_features
    reason = failure(lambda: bool((torch._int_mm(a, weight.t()) == largest).all()), "it saturates")
    if reason is not None:
        shape = [out_features, in_features]
        _log.warning("int8 product on %s for weights %s by way of fp32: %s", device, shape, reason)
    return reason is None
