"""Which positions a call fills, rule by rule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lopa_ray.decoding.branching import PositionScore, scores_by_position
from lopa_ray.decoding.unmasking_rules import (
    dream_fill_counts,
    even_fill_count,
    rank_by_score,
    sample_by_score,
    sample_independently,
    select_above_threshold,
    select_above_threshold_or_count,
    select_by_factor,
    select_near_anchors,
    select_within_entropy,
)
from support.step_tables import report


def scores(*probabilities: float, ranks: list[float] | None = None) -> dict[int, PositionScore]:
    """Positions 10, 11, ... with these probabilities, ranked by them or by `ranks`."""
    by_probability = report(1, 0, {10 + at: (1, probability) for at, probability in enumerate(probabilities)})
    return scores_by_position(replace(by_probability, scores=np.array(ranks or probabilities)))


def test_ties_keep_their_order():
    assert rank_by_score(scores(0.5, 0.9, 0.5, 0.9)) == [11, 13, 10, 12]


def test_a_threshold_takes_what_reaches_it_or_the_best():
    masked = scores(0.9, 0.2, 0.95, 0.5)
    assert select_above_threshold(masked, 0.9) == [12, 10]
    assert select_above_threshold(masked, 0.96) == [12]
    assert select_above_threshold(masked, 0.1, max_count=3) == [12, 10, 13]
    assert select_above_threshold(masked, 0.99, max_count=3) == [12]


def test_a_relaxed_threshold_counts_near_sure_positions_only():
    masked = scores(0.6, 0.9, 0.6, 0.6, 0.55)
    assert select_near_anchors(masked, 0.9, 0.6, 1) == [11, 10, 12]
    assert select_near_anchors(masked, 0.9, 0.6, 2) == [11, 10, 12, 13]
    assert select_near_anchors(masked, 0.9, 0.6, 0) == [11] == select_above_threshold(masked, 0.9)
    assert select_near_anchors(masked, 0.95, 0.1, 4) == [11]  # no position is sure
    assert select_near_anchors(masked, 0.9, 0.5, 4, max_count=3) == [11, 10, 12]


def test_a_relaxed_threshold_above_the_other_one_asks_for_more_near_sure_positions():
    # The best one is always filled, and nothing else is that sure near it.
    assert select_near_anchors(scores(0.7, 0.8, 0.2, 0.2, 0.2, 0.2), 0.6, 0.9, 1) == [11]
    assert select_near_anchors(scores(0.95, 0.8, 0.2, 0.2, 0.2, 0.7), 0.6, 0.9, 1) == [10]


def test_sdar_takes_all_above_or_its_share():
    masked = scores(0.9, 0.2, 0.95, 0.5)
    assert select_above_threshold_or_count(masked, 0.5, 1) == [10, 12]  # strictly above
    assert select_above_threshold_or_count(masked, 0.5, 3) == [12, 10, 13]  # instead of, not in addition


def test_the_factor_rule_by_hand():
    # Bounds for n = 1, 2, 3, 4 with factor 1: none, 2/3, 3/4, 4/5.
    assert select_by_factor(scores(0.1, 0.1, 0.1, 0.1), 1.0) == [10]
    assert select_by_factor(scores(0.1, 0.7, 0.7, 0.1), 1.0) == [11, 12]
    assert select_by_factor(scores(0.9, 0.9, 0.7, 0.1), 1.0) == [10, 11]
    assert select_by_factor(scores(0.9, 0.9, 0.8, 0.1), 1.0) == [10, 11, 12, 13]  # the last one alone fails
    assert select_by_factor(scores(0.9, 0.9, 0.9, 0.9), 1.0) == [10, 11, 12, 13]
    assert select_by_factor(scores(0.9, 0.1), 1.0) == [10, 11]  # likewise
    assert select_by_factor(scores(0.1), 1.0) == [10]


def test_entropy_is_bounded_in_sum():
    masked = scores(0.5, 0.5, 0.5, ranks=[-0.3, -0.1, -0.5])
    assert select_within_entropy(masked, 0.4) == [11]  # 0.1; 0.1 + 0.3 is not less than 0.4
    assert select_within_entropy(masked, 0.41) == [11, 10]
    assert select_within_entropy(masked, 0.0) == [11]
    assert select_within_entropy(masked, 9.0) == [11, 10, 12]


@given(st.integers(0, 70), st.integers(1, 80))
def test_schedules_fill_everything(masks, steps):
    even = [even_fill_count(masks, steps, call) for call in range(steps)]
    assert sum(dream_fill_counts(masks, steps, 1e-3)) == sum(even) == masks
    assert max(even) - min(even) <= 1
    if masks and steps > 1:
        assert dream_fill_counts(masks, steps, 1e-3, first=1)[0] == 1
        assert sum(dream_fill_counts(masks, steps, 1e-3, first=1)) == masks


def test_drawn_positions_follow_the_softmax_of_their_scores():
    masked = scores(0.2, 0.4, 0.8)
    first = Counter(sample_by_score(masked, 1, 0.4, seed, 3)[0] for seed in range(4000))
    weights = {10: 1.0, 11: 1.6487, 12: 4.4817}  # exp(0), exp(0.5), exp(1.5)
    for position, weight in weights.items():
        assert first[position] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)
    even = Counter(sample_by_score(masked, 1, float("inf"), seed, 3)[0] for seed in range(4000))
    assert all(abs(even[p] / 4000 - 1 / 3) < 0.03 for p in masked)
    assert len(set(sample_by_score(masked, 3, 0.4, 7, 1))) == 3
    assert sample_by_score(masked, 2, 0.4, 7, 1) == sample_by_score(masked, 2, 0.4, 7, 1)


def test_each_position_has_the_chance_for_itself():
    masked = scores(*[0.5] * 10)
    filled = Counter(p for seed in range(800) for p in sample_independently(masked, 0.3, seed, 2))
    assert all(count / 800 == pytest.approx(0.3, abs=0.06) for count in filled.values())
    assert len(filled) == 10
    assert sample_independently(masked, 0.0, 1, 1) == []
    assert sample_independently(masked, 1.0, 1, 1) == list(masked)
