"""Triton kernel of `silu_mul`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = tl.constexpr(1024)


@triton.jit
def _silu_mul(gate_up, out, width):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    # The result is rounded between the two operations, as in the reference.
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out + row * width + columns, silu * up, mask=inside)


def launch(gate_up: Tensor) -> Tensor:
    """See `lopa_ray.kernels.silu_mul`."""
    gate_up = gate_up.contiguous()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    _silu_mul[(rows, triton.cdiv(width, BLOCK.value))](gate_up, out, width)
    return out
