"""Soft inputs: embeddings between a token's and the mask token's (DMax, arXiv 2604.08302).

Shape suffixes: R rows, D hidden size.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPSILON = 1e-6  # added to the length that a mixture is divided by


def embed_softly(embed: nn.Embedding, ids: Tensor, weights: Tensor | None, mask_token_id: int) -> Tensor:
    """The inputs of rows: int64 ids [R] → [R, D] in the embedding's dtype. Without `weights` these are the embeddings.
    With weights w, floating [R], a row is w · E[id] + (1 - w) · E[mask], rescaled to the length w · |E[id]| + (1 - w) ·
    |E[mask]|, computed in fp32. Where w is 1 it is the embedding itself, bit for bit."""
    if weights is None:
        return embed(ids)  # type: ignore[no-any-return]  # modules are not typed
    embeddings = embed(F.pad(ids, (0, 1), value=mask_token_id))
    plain = embeddings[:-1]
    tokens, mask = plain.float(), embeddings[-1:].float()
    share = weights.float()[:, None]
    mixed = share * tokens + (1 - share) * mask
    length_of = partial(torch.linalg.vector_norm, dim=-1, keepdim=True)
    length = share * length_of(tokens) + (1 - share) * length_of(mask)
    soft = mixed * (length / (length_of(mixed) + EPSILON))
    return torch.where(share < 1, soft.to(plain.dtype), plain)
