"""A linear layer in which the bits of a row do not depend on the other rows, nor on their number.

Libraries order the sums of a product by its number of rows. So on CPU torch's product is called with `CHUNK_ROWS` rows
each time, and on CUDA a Triton kernel sums all inputs of an output in one order.

Shape suffixes: R rows, I inputs, O outputs.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.kernels.operators import operator

CHUNK_ROWS = 32
"""Rows of each product on CPU. In bfloat16 oneDNN sums products of so many rows in the same order on 1 to 4 threads,
and with 64 or 128 rows it does not (torch 2.13, AMX)."""


@operator(lambda x, weight, *_: x.new_empty(len(x), len(weight)), launches=1)
def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, I] times the transpose of weight [O, I], plus a bias [O] → [R, O], all of one floating dtype. On CUDA sums
    are in fp32, and the bias is added before they are rounded."""
    rows = x.shape[0]
    x = F.pad(x, (0, 0, 0, -rows % CHUNK_ROWS)).contiguous()
    chunks = [F.linear(chunk, weight, bias) for chunk in x.split(CHUNK_ROWS)]
    return (torch.cat(chunks) if len(chunks) > 1 else chunks[0])[:rows]


TRIAL_OUTPUTS = 1024
"""Outputs of a trial at most: what it finds out does not depend on the number of outputs, and its time does."""


@cache
def place_matters(device: str, dtype: torch.dtype, out_features: int, in_features: int, threads: int) -> bool:
    """Whether a row of a product with weights [O, I] has other bits at another place of its chunk. Tried once per shape
    and number of torch's threads: oneDNN without bfloat16 instructions cuts chunks by threads."""
    draw = torch.Generator().manual_seed(threads)
    weight, x = (
        torch.randn(size, in_features, generator=draw).to(device, dtype)
        for size in (min(out_features, TRIAL_OUTPUTS), CHUNK_ROWS)
    )
    whole = invariant_linear(x, weight)
    return any(
        not torch.equal(invariant_linear(x.roll(places, 0), weight), whole.roll(places, 0))
        for places in (1, 5, CHUNK_ROWS // 2)
    )
