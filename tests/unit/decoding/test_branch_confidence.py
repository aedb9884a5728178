"""Branch confidence and the winner."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given, strategies as st

from lopa_ray.decoding.branch_confidence import (
    bottom,
    certainty,
    geometric,
    length_corrected,
    mean,
    parse_metric,
    product,
    segment,
    window,
)
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.lookahead import NO_MASKS_CONFIDENCE, best_branch

SCORES = st.lists(st.floats(-5, 1), min_size=1, max_size=20)


def test_metrics_by_hand():
    scores = [0.5, 0.1, 0.9, 0.3]
    assert mean(scores) == pytest.approx(0.45)
    assert bottom(scores, 0.5) == pytest.approx(0.2)
    assert bottom(scores, 0.74) == pytest.approx(0.2)  # floor(2.96)
    assert bottom(scores, 0.75) == pytest.approx(0.3)
    assert bottom(scores, 0.0) == 0.1  # at least one
    assert bottom(scores, 1.0) == mean(scores)


def test_metrics_that_see_order_by_hand():
    scores = [0.5, 0.1, 0.9, 0.3]
    assert window(scores, 2, 0) == pytest.approx(0.3)  # 0.3, 0.5, 0.6
    assert window(scores, 2, 0.67) == pytest.approx(0.4)  # the lowest two
    assert window(scores, 9) == pytest.approx(0.45)  # fewer scores than the window
    assert segment(scores, 2) == pytest.approx(0.3)  # 0.3 and 0.6
    assert segment(scores, 3) == pytest.approx(0.1)  # 0.5, 0.1 and 0.6
    assert segment(scores, 9) == 0.1


def test_certainty_is_of_the_whole_sequence():
    assert certainty([-0.5, -1.5]) == -2.0
    # An uncertain position less is better, although the mean of the others is worse.
    assert certainty([-1.0]) > certainty([-0.5, -0.6]) and mean([-1.0]) < mean([-0.5, -0.6])
    assert certainty([0.0]) < NO_MASKS_CONFIDENCE


def test_metrics_that_multiply_by_hand():
    scores = [0.5, 0.1, 0.9, 0.3]
    assert product(scores) == pytest.approx(0.0135)
    assert geometric(scores) == pytest.approx(0.0135**0.25)
    assert length_corrected(scores, 0) == pytest.approx(math.log(0.0135))
    assert length_corrected(scores, 1) == pytest.approx(math.log(0.0135) / 4)
    assert length_corrected(scores, 0.5) == pytest.approx(math.log(0.0135) / 2)
    for metric in (product, geometric, partial(length_corrected, alpha=0.5)):
        assert metric([1.0, 0.0]) < metric([1.0, 1e-9]) < metric([1.0, 1.0]) <= NO_MASKS_CONFIDENCE


@given(SCORES, st.integers(1, 30), st.floats(0, 1))
def test_every_metric_rises_with_every_score(scores, size, ratio):
    better = [score + 0.01 for score in scores]
    for metric in (
        mean,
        partial(bottom, ratio=ratio),
        partial(window, size=size, ratio=ratio),
        partial(segment, count=size),
    ):
        assert metric(better) > metric(scores)
        assert min(scores) - 1e-9 <= metric(scores) <= max(scores) + 1e-9


@pytest.mark.parametrize("text", ["mean()", " bottom( 1e-1 ) ", "window(3, 0.5)"])
def test_written_metrics(text):
    assert parse_metric(text)([0.5, 0.5]) == 0.5


@pytest.mark.parametrize(
    "text",
    ["median", "bottom", "bottom(2)", "window(2.5)", "segment(0)", "window(nan)", "mean(0.5)", "bottom(0.5"],
)
def test_wrong_metrics(text):
    with pytest.raises(ValueError, match="branch_confidence"):
        LopaSettings(branch_confidence=text)


def test_ties_go_to_the_first():
    assert best_branch([0.2, 0.5, 0.5]) == 1
    assert best_branch([1.0]) == 0
    assert best_branch([-3.0, -2.0]) == 1
