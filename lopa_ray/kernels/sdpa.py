"""Attention of a few query rows over a run of keys, by torch's scaled_dot_product_attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sdpa(
    q: Tensor, keys: Tensor, values: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """Attention of q [T, H, E] over keys and values [K, L, E] → [T, H, E], all of one floating dtype.

    `scale` is E ** -0.5 if it is None. `mask` bool [T, L] says which keys each row sees; None: all.
    The query heads of a KV head are stacked as further rows of that head. This gives grouped-query attention without
    repeated keys on every device. The queries are copied to new memory, because the rounding of CPU kernels depends on
    alignment, and the alignment of a view depends on the rows packed before it.
    """
    rows, heads, dim = q.shape
    groups = keys.shape[0]
    stacked = q.view(rows, groups, -1, dim).permute(1, 2, 0, 3).clone(memory_format=torch.contiguous_format)
    stacked = stacked.view(1, groups, -1, dim)
    of_heads = None if mask is None else mask.repeat(heads // groups, 1)
    mixed = F.scaled_dot_product_attention(stacked, keys[None], values[None], attn_mask=of_heads, scale=scale)
    return mixed.view(groups, heads // groups, rows, dim).permute(2, 0, 1, 3).reshape(rows, heads, dim)
