"""A product per expert over rows that are sorted by expert.

Shape suffixes: S sorted rows, N experts, I inputs, O outputs, G groups of inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.kernels.fp8 import unfold
from lopa_ray.kernels.int8_matmul import int8_matmul
from lopa_ray.kernels.invariant_linear import invariant_linear
from lopa_ray.kernels.operators import operator
from lopa_ray.kernels.padding import padded_rows

GROUPED_MM_BYTES = 16  # torch's grouped product takes rows that are a multiple of so many bytes long

GROUPED_MM_MAJORS = (9, 10)
"""Compute capabilities where torch's grouped product is one kernel. On others it is one per expert, after `ends` is
copied to the host."""


def grouped_matmul(
    x: Tensor,
    weight: Tensor,
    ends: Tensor,
    group_scale: Tensor | None = None,
    width: int = 0,
    *,
    batch_invariant: bool = False,
) -> Tensor:
    """x [S, I] times the transpose of each row's expert in weight [N, O, I] → [S, O].

    Expert n has the rows from `ends[n - 1]` (0 for the first one) to `ends[n]`, int32 [N]. Rows after the last end are
    not computed, and may be anything. Floating x takes floating or int8 weights, which are converted, and gives
    its own dtype; int8 x takes int8 and gives exact int32. fp8 weights have scales fp32 [N, O, G], each of `width`
    inputs, and are unfolded in fp32 before they are converted. With `batch_invariant` the bits of a row depend neither
    on the other rows nor on their number.
    """
    if batch_invariant and x.is_cpu and not torch.is_grad_enabled():
        return _by_expert(x, weight, ends, group_scale, width, batch_invariant=True)
    if x.is_cuda and not batch_invariant and not torch.is_grad_enabled() and _has_grouped_mm(x, weight):
        return F.grouped_mm(x, weight.mT, offs=ends)
    return _grouped_matmul(x, weight, ends, group_scale, width)


def _has_grouped_mm(x: Tensor, weight: Tensor) -> bool:
    """Whether torch's own product takes these on CUDA, without waiting for `ends`. torch 2.9 does not have it."""
    if not hasattr(F, "grouped_mm"):
        return False
    sizes = (x.shape[1] * x.itemsize, weight.shape[1] * weight.itemsize)
    if not x.dtype == weight.dtype == torch.bfloat16 or any(size % GROUPED_MM_BYTES for size in sizes):
        return False
    return torch.cuda.get_device_properties(x.device).major in GROUPED_MM_MAJORS


@operator(lambda x, weight, *_: x.new_empty(len(x), weight.shape[1], dtype=_dtype_of_sums(x)), launches=1)
def _grouped_matmul(
    x: Tensor, weight: Tensor, ends: Tensor, group_scale: Tensor | None, width: int
) -> Tensor:
    return _by_expert(x, weight, ends, group_scale, width, batch_invariant=False)


def _by_expert(
    x: Tensor, weight: Tensor, ends: Tensor, group_scale: Tensor | None, width: int, batch_invariant: bool
) -> Tensor:
    stops, pieces = ends.tolist(), []
    for expert, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
        if stop > start:
            own = weight[expert]
            own = own if group_scale is None else unfold(own, group_scale[expert], width)
            pieces.append(_matmul(x[start:stop], own, batch_invariant))
    if stops[-1] < len(x):
        pieces.append(x.new_zeros(len(x) - stops[-1], weight.shape[1], dtype=_dtype_of_sums(x)))
    return torch.cat(pieces)


def _matmul(x: Tensor, weight: Tensor, batch_invariant: bool) -> Tensor:
    if x.dtype == torch.int8:
        return int8_matmul(x, weight)
    # Rows in memory of their own: CPU kernels may round by alignment.
    if batch_invariant:
        return invariant_linear(x.clone(), weight.to(x.dtype))
    padded = F.pad(x, (0, 0, 0, padded_rows(x.shape[0]) - x.shape[0]))
    return F.linear(padded.clone() if padded is x else padded, weight.to(x.dtype))[: x.shape[0]]


def _dtype_of_sums(x: Tensor) -> torch.dtype:
    return torch.int32 if x.dtype == torch.int8 else x.dtype
