"""RMS norm of rows, fused with the residual addition before it."""

from __future__ import annotations

import torch
from torch import Tensor

from lopa_ray.kernels.operators import operator


@operator(lambda x, *_: (torch.empty_like(x), torch.empty_like(x)), launches=1)
def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The sum of x and delta [R, D], and the sum's RMS norm along D times weight [D], both in the dtype of x. The norm
    is computed in fp32 and rounded to the dtype of x before it is multiplied by the weight."""
    total = x + delta
    return total, reference_rms_norm(total, weight, eps)


def reference_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The RMS norm of x [..., D] times weight [D], with torch operations, in the dtype of x; sums are in fp32."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)
