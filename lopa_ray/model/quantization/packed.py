"""Weights in the order in which oneDNN multiplies by them on CPUs. torch's own product orders them anew in each call,
which for few rows takes longer than the product, and in float32 it is another library's.

Shape suffixes: R rows, S sorted rows, N experts, O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

MIN_WEIGHTS = 1 << 18
"""Weights of a layer, or of an expert, from which packing pays: fewer stay in a core's cache in either order."""

TYPICAL_ROWS = 64
"""Rows that oneDNN is told to order for. The order hardly depends on them, and results do not."""


TRIED_ROWS = (2, 3, 5, 16, 33, 80, 256)
"""Numbers of rows among which a row of a product in fp32 has to have the same bits."""

_tried: dict[tuple[int, ...], bool] = {}


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


def packs_float32(weight: Tensor) -> bool:
    """Whether weights [..., O, I] of any dtype are in fp32 on a CPU, and torch has the library for their products."""
    return weight.is_cpu and weight.dtype == torch.float32 and bool(torch._C._has_mkldnn)


def keeps_bits(packed: Tensor, bias: Tensor | None) -> bool:
    """Whether a row of the product with packed weights fp32 [O, I], one of at least two rows, has the same bits among
    any of `TRIED_ROWS`. Tried once per shape and number of torch's threads."""
    key = (*packed.shape, bias is None, torch.get_num_threads())
    if key not in _tried:
        x = torch.randn(max(TRIED_ROWS) + 1, packed.shape[1], generator=torch.Generator().manual_seed(0))
        whole = packed_product(x, packed, bias)
        parts = [slice(len(x) - rows, None) for rows in TRIED_ROWS]
        _tried[key] = all(torch.equal(packed_product(x[part], packed, bias), whole[part]) for part in parts)
    return _tried[key]


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
