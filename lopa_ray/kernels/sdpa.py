"""Attention of a few query rows over a run of keys, or over a growing run, by torch's scaled_dot_product_attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

KEYS = 32  # causal rows read a multiple of so many keys, some of which are masked

ALIGN_BYTES = 64  # the queries of a causal row begin at a multiple of this


def sdpa(
    q: Tensor, keys: Tensor, values: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """Attention of q [T, H, E] over keys and values [K, L, E] → [T, H, E], all of one floating dtype. `scale` is E **
    -0.5 if it is None. `mask` [T, L] is bool and says which keys each row sees, or is added to the scores, in their
    dtype; None: all."""
    of_heads = None if mask is None else mask.repeat(q.shape[1] // keys.shape[0], 1)
    return batched_sdpa(q[None], keys[None], values[None], scale=scale, mask=of_heads)[0]


def batched_sdpa(
    q: Tensor, keys: Tensor, values: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """`sdpa` of a batch, all of one floating dtype: q [B, T, H, E], keys and values [B, K, L, E] → [B, T, H, E]. `mask`
    [H / K x T, L], or [B, 1, H / K x T, L], has the rows of the query heads of a KV head one after the other."""
    batch, rows, heads, dim = q.shape
    groups = keys.shape[1]
    # The query heads of a KV head are further rows of that head, so no keys are repeated. Queries get memory of their
    # own, because the rounding of CPU kernels depends on alignment.
    stacked = q.view(batch, rows, groups, -1, dim).permute(0, 2, 3, 1, 4)
    stacked = stacked.clone(memory_format=torch.contiguous_format).view(batch, groups, -1, dim)
    mixed = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, scale=scale)
    mixed = mixed.view(batch, groups, heads // groups, rows, dim).permute(0, 3, 1, 2, 4)
    return mixed.reshape(batch, rows, heads, dim)


def causal_sdpa(q: Tensor, keys: Tensor, values: Tensor, seen: int) -> Tensor:
    """Attention of rows of which the first sees `seen` keys and each further row one more.

    q [T, H, E], keys and values [K, C, E] with C a multiple of `KEYS` → [T, H, E], all of one floating dtype. What is
    masked has to be finite. Each row is an entry of a batch, so its result has the same bits whatever the other rows
    are: it depends on what the row sees, and on the number of keys that are read for it.
    """
    rows, heads, dim = q.shape
    groups = keys.shape[0]
    queries = q.reshape(rows, heads * dim)
    padding = -queries.shape[1] % (ALIGN_BYTES // q.element_size())
    whole = torch.contiguous_format
    queries = F.pad(queries, (0, padding)) if padding else queries.clone(memory_format=whole)
    queries = queries[:, : heads * dim].unflatten(1, (groups, heads // groups, dim))
    counts = torch.arange(seen, seen + rows, device=q.device)[:, None, None, None]
    mixed, begin = [], 0
    while begin < rows:
        read = -(-(seen + begin) // KEYS) * KEYS
        end = min(rows, read - seen + 1)
        mask = torch.arange(read, device=q.device) < counts[begin:end]
        k, v = (x[:, :read].expand(end - begin, -1, -1, -1) for x in (keys, values))
        mixed.append(F.scaled_dot_product_attention(queries[begin:end], k, v, attn_mask=mask))
        begin = end
    return torch.cat(mixed).reshape(rows, heads, dim)
