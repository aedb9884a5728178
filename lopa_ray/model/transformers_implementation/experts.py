"""Experts of models that the package transformers runs, on CPUs: with rows added until each has a multiple of 16, since
a row's product has other bits among few rows than among many, and other requests decide how many rows an expert gets.

Shape suffixes: R rows, D hidden size, P experts per row.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from lopa_ray.kernels.padding import ROW_MULTIPLE
from lopa_ray.model.transformers_models.package import import_transformers

PADDED_EXPERTS = "lopa_ray_padded"  # the function's name among transformers' functions


@cache
def register_padded_experts() -> str:
    import_transformers()
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(PADDED_EXPERTS, _padded_experts)
    return PADDED_EXPERTS


def _padded_experts(
    experts: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Function that transformers calls for the experts [R, P] of hidden states [R, D] with weights [R, P] → [R, D]."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    rows, per_row = top_k_index.shape
    counts = torch.bincount(top_k_index.flatten(), minlength=experts.num_experts)
    missing = -counts % ROW_MULTIPLE
    # Whole rows are added. Where that takes more, an expert with rows gets some multiples more.
    while missing.sum() % per_row:
        missing[counts.argmax()] += ROW_MULTIPLE
    added = torch.repeat_interleave(missing).view(-1, per_row)
    mixed: Tensor = ALL_EXPERTS_FUNCTIONS["grouped_mm"](
        experts,
        torch.cat((hidden_states, hidden_states.new_zeros(len(added), hidden_states.shape[1]))),
        torch.cat((top_k_index, added)),
        torch.cat((top_k_weights, top_k_weights.new_zeros(added.shape))),
    )
    return mixed[:rows]
