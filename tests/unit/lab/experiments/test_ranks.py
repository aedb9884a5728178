"""Ranks on hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest

from lopa_lab.experiments.predictor import average_ranks, spearman
from lopa_lab.experiments.tfo import share_below


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert average_ranks([3.0, 1.0, 3.0, 2.0, 3.0]).tolist() == [4.0, 1.0, 4.0, 2.0, 4.0]


def test_spearman() -> None:
    assert spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # d = (0, 1, 1, 0): 1 - 6 · 2 ÷ (4 · 15)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


def test_spearman_with_ties_is_pearson_of_average_ranks() -> None:
    one, other = [0.1, 0.4, 0.4, 0.9, 0.2], [2, 3, 2, 3, 1]
    expected = np.corrcoef([1, 3.5, 3.5, 5, 2], [2.5, 4.5, 2.5, 4.5, 1])[0, 1]
    assert spearman(one, other) == pytest.approx(expected)


def test_share_below_counts_equal_ones_half() -> None:
    assert share_below(2.0, [1.0, 2.0, 2.0, 3.0]) == pytest.approx(0.5)
    assert share_below(9.0, [1.0, 2.0]) == 1.0
    assert share_below(0.0, [1.0, 2.0]) == 0.0
