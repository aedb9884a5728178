"""The largest sizes that a checkpoint's configuration may name. What is larger is a damaged file, which would be found
after minutes of making empty layers, or by an overflow inside torch."""

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
"""Maximum by field of a model's configuration; all others: 2**31."""

LARGEST_EXPERTS = 2**18  # experts in all layers together

LARGEST_NUMBER = 2.0**53  # integers above it are not exact as floats

_MAY_BE_ZERO = ("experts.shared", "experts.dense_layers", "experts.capacity")


def checked(kind: str, value: Any, key: str, field: str, where: str) -> Any:
    """The value of a key of the file `where`, which sets a `field` of the kind int, float or bool. Raises as below."""
    if kind == "bool":
        if not isinstance(value, bool):
            raise _wrong_value(key, value, "true or false", where)
        return value
    return (checked_int if kind == "int" else checked_float)(value, key, field, where)


def checked_int(value: Any, key: str, field: str, where: str) -> int:
    """The value of a key of the file `where`, which sets a `field` of a model's configuration. Raises CheckpointError
    unless it is an integer from 1 on, or from 0 where that is allowed, up to the largest of that field."""
    least, most = int(field not in _MAY_BE_ZERO), LARGEST.get(field, 2**31)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _wrong_value(key, value, f"an integer above {least - 1} and at most {most}", where)
    return value


def checked_float(value: Any, key: str, field: str, where: str, *, may_be_zero: bool = False) -> float:
    """A number above 0, as `checked_int`. Raises CheckpointError for anything else."""
    # bool is an int to Python, but a true in place of a number is a mistake.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= LARGEST_NUMBER or (value == 0 and not may_be_zero):
        raise _wrong_value(key, value, "a number above 0", where)
    return float(value)


def _wrong_value(key: str, value: object, need: str, where: str) -> CheckpointError:
    got = f"no {key}" if value is None else f"{key} = {value!r}"
    return CheckpointError(f"{where}: got {got}; it must be {need}; correct the file")
