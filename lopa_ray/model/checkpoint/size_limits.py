"""The largest sizes that a checkpoint's configuration may name: beyond any model, and below what overflows.

What is larger is a damaged file. Without a limit it would be found after minutes of making empty layers, or by an
overflow inside torch.
"""

from __future__ import annotations

from typing import Any

from lopa_ray.errors import CheckpointError

LARGEST = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "num_layers": 2**10,
    "num_heads": 2**14,
    "num_kv_heads": 2**14,
    "head_dim": 2**16,
    "intermediate_size": 2**24,
    "experts.count": 2**14,
    "experts.width": 2**24,
    "canvas_length": 2**12,  # each position of a slot's canvas has a row of self-conditioning in memory
}
"""By field of a model's configuration; see `largest` for all others."""

LARGEST_EXPERTS = 2**18
"""Experts in all layers together."""


def largest(field: str) -> int:
    return LARGEST.get(field, 2**31)


def checked_int(value: Any, key: str, field: str, where: str, *, minimum: int = 1) -> int:
    """The value of a key of the file `where`, which sets a `field` of a model's configuration. Raises CheckpointError
    unless it is an integer from `minimum` to the largest of that field."""
    most = largest(field)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= most:
        raise wrong_value(key, value, f"an integer above {minimum - 1} and at most {most}", where)
    return value


def wrong_value(key: str, value: object, need: str, where: str) -> CheckpointError:
    """The error for a key of the file `where` with a wrong value, or with none."""
    got = f"no {key}" if value is None else f"{key} = {value!r}"
    return CheckpointError(f"{where}: got {got}; it must be {need}; correct the file")
