"""Weights in the order in which oneDNN multiplies by them on CPUs. torch's own product orders them anew in each call,
which for few rows takes longer than the product, and in float32 it is another library's.

Shape suffixes: R rows, S sorted rows, N experts, O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

MIN_WEIGHTS = 1 << 18
"""Weights of a layer, or of an expert, from which packing pays: fewer stay in a core's cache in either order."""

TYPICAL_ROWS = 64
"""Rows that oneDNN is told to order for. The order hardly depends on them, and results do not."""


TRIED_ROWS = (2, 3, 5, 16, 33, 80)
"""Numbers of rows among which a row of a product in fp32 has to have the same bits."""


def pays(weight: Tensor) -> bool:
    """Whether weights [..., O, I] of any dtype are to be packed: large ones in bf16, on a CPU that multiplies it."""
    return (
        weight.is_cpu
        and weight.dtype == torch.bfloat16
        and weight.shape[-1] * weight.shape[-2] >= MIN_WEIGHTS
        and multiplies_bfloat16()
    )


def multiplies_bfloat16() -> bool:
    """Whether this CPU has products in bfloat16, and torch has the library for them."""
    return torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def keeps_bits(weight: Tensor) -> bool:
    """Whether weights [O, I] are in fp32 on a CPU where a row of their packed product, one of at least two, has the
    same bits for any other rows and any number of them. Tried once per shape and number of torch's threads."""
    is_float = weight.is_cpu and weight.dtype == torch.float32 and torch._C._has_mkldnn
    return is_float and _rows_keep_bits(*weight.shape, torch.get_num_threads())


@cache
def _rows_keep_bits(outputs: int, inputs: int, threads: int) -> bool:
    draw = torch.Generator().manual_seed(threads)
    weight, x = (torch.randn(size, inputs, generator=draw) for size in (outputs, max(TRIED_ROWS) + 1))
    packed = pack(weight)
    expected = packed_product(x, packed)
    return all(
        torch.equal(packed_product(x[first : first + rows], packed), expected[first : first + rows])
        for rows in TRIED_ROWS
        for first in (0, 1)
    )


def pack(weight: Tensor) -> nn.Parameter:
    """The same weights [O, I] in bf16 or fp32, packed; `Tensor.to_dense` gives them back."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), TYPICAL_ROWS)
    return nn.Parameter(packed, requires_grad=False)


def packed_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, I], packed weight [O, I] and bias [O] or None → [R, O], all in bf16 or all in fp32."""
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def packed_expert_product(x: Tensor, weights: Sequence[Tensor], ends: Tensor) -> Tensor:
    """Sorted rows x bf16 [S, I], packed weights bf16 [O, I] of the N experts, and int32 [N] the ends of their rows →
    bf16 [S, O]. Rows after the last end are zeros."""
    stops = ends.tolist()
    out = x.new_zeros(len(x), weights[0].shape[0])
    for weight, start, stop in zip(weights, [0, *stops], stops, strict=False):
        if stop > start:
            out[start:stop] = packed_product(x[start:stop], weight)
    return out
