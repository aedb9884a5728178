"""Ranks: Spearman's correlation, and where a value lies among others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lopa_lab.records.intervals import Array


def average_ranks(values: Sequence[float]) -> Array:
    """Rank of each value from 1 on; equal ones share the mean of their ranks: [values], float64."""
    array = np.asarray(values, dtype=np.float64)
    ordered = np.sort(array)
    first, last = np.searchsorted(ordered, array, "left"), np.searchsorted(ordered, array, "right")
    ranks: Array = (first + 1 + last) / 2
    return ranks


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation of two lists of the same length; 0 if one of them is constant."""
    a, b = average_ranks(one), average_ranks(other)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def share_below(value: float, others: Sequence[float]) -> float:
    """The share of `others` below a value; equal ones count half."""
    array = np.asarray(others, dtype=np.float64)
    return float((array < value).mean() + (array == value).mean() / 2)
