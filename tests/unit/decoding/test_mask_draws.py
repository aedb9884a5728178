"""Which positions of a target are masked in the draws of an estimate of its likelihood."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lopa_ray.decoding.likelihood_session import MaskDraws, draw_key, num_masked_of_draws

KEYS = range(4000)


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 2**64 - 1))
def test_numbers_of_masks_lie_evenly_apart(length: int, mc_num: int, key: int) -> None:
    counts = num_masked_of_draws(length, mc_num, key)
    assert len(counts) == mc_num and set(counts) <= set(range(1, length + 1))
    first = counts[0]
    for draw, count in enumerate(counts):
        exact = first + draw * length / mc_num
        assert min((count - exact) % length, (exact - count) % length) <= 0.5 + 1e-9
    assert max(Counter(counts).values()) - min(Counter(counts).values()) <= 1 or mc_num < length


@pytest.mark.parametrize(("length", "mc_num"), [(2, 4), (3, 1), (3, 4), (5, 3), (8, 4)])
def test_every_number_of_masks_is_as_likely_as_any_other(length: int, mc_num: int) -> None:
    drawn = Counter(count for key in KEYS for count in num_masked_of_draws(length, mc_num, key * 2**40 + 7))
    expected = len(KEYS) * mc_num / length
    assert set(drawn) == set(range(1, length + 1))
    assert all(abs(count - expected) < 5 * expected**0.5 for count in drawn.values())


@pytest.mark.medium
def test_every_subset_of_a_size_is_as_likely_as_any_other() -> None:
    drawn: Counter[tuple[int, ...]] = Counter()
    for key in KEYS:
        draws = MaskDraws.of(4, 1, key)
        drawn[tuple(np.flatnonzero(draws.masks[0]).tolist())] += 1
    for size in range(1, 5):
        expected = len(KEYS) / 4 / comb(4, size)
        for subset in combinations(range(4), size):
            assert abs(drawn[subset] - expected) < 5 * expected**0.5


@given(st.integers(1, 9), st.integers(1, 64), st.integers(0, 2**64 - 1))
def test_equal_draws_are_one_with_their_share(length: int, mc_num: int, key: int) -> None:
    draws = MaskDraws.of(length, mc_num, key)
    assert len({mask.tobytes() for mask in draws.masks}) == len(draws.masks) <= mc_num
    num_masked = draws.masks.sum(1)
    shares = draws.weights * num_masked / length
    assert shares.sum() == pytest.approx(1.0)
    of_sizes = Counter(num_masked_of_draws(length, mc_num, key))
    for size, count in of_sizes.items():
        assert shares[num_masked == size].sum() * mc_num == pytest.approx(count)


def test_a_key_is_of_seed_prefix_and_target() -> None:
    keys = {
        draw_key(seed, prefix, target)
        for seed in (0, 1)
        for prefix, target in (([1], [2, 3]), ([1, 2], [3]), ([1, 2], [4]))
    }
    assert len(keys) == 6 and draw_key(0, [1], [2, 3]) == draw_key(0, [1], [2, 3])
