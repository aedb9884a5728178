"""The largest sizes that a checkpoint's configuration may name: beyond any model, and below what overflows.

What is larger is a damaged file. Without a limit it would be found after minutes of making empty layers, or by an
overflow inside torch.
"""

from __future__ import annotations

from collections.abc import Mapping

LARGEST: Mapping[str, int] = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "num_layers": 2**10,
    "num_heads": 2**14,
    "num_kv_heads": 2**14,
    "head_dim": 2**16,
    "intermediate_size": 2**24,
    "experts.count": 2**14,
    "experts.width": 2**24,
}
"""By field of a model's configuration; see `largest` for all others."""

LARGEST_EXPERTS = 2**18
"""Experts in all layers together."""


def largest(field: str) -> int:
    """The largest value of a field that is an integer."""
    return LARGEST.get(field, 2**31)
