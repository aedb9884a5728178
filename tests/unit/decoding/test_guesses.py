"""The guesses of what follows, against a search over all strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from lopa_ray.decoding.branch_budget import CostBudget
from lopa_ray.decoding.guesses import (
    CERTAIN,
    MIN_REPLACED,
    STALE_SHARE,
    Alternatives,
    Guess,
    choose_guesses,
    reweigh,
)


@st.composite
def any_drafts(draw: st.DrawFn) -> list[Alternatives]:
    """Up to four positions with up to three tokens each."""
    drafts = []
    for position in range(draw(st.integers(0, 4))):
        first = draw(st.floats(0.4, CERTAIN))
        others = [(1 - first) * share for share in draw(st.sampled_from([(), (0.6,), (0.5, 0.3)]))]
        drafts.append([(10 * position + at, p) for at, p in enumerate((first, *others))])
    return drafts


def value(guesses: Sequence[Guess], drafts: Sequence[Alternatives], age: int) -> float:
    """What guesses are chosen for, summed over all that may follow. Token -1 stands for all other ones."""
    total = 0.0
    with_rest = [[*tokens, (-1, 1 - sum(p for _, p in tokens))] for tokens in drafts]
    for follows in product(*with_rest):
        probability = math.prod(p for _, p in follows)
        tokens = tuple(token for token, _ in follows)
        right = [
            next((at for at, token in enumerate(guess) if token != tokens[at]), len(guess))
            for guess in guesses
        ]
        whole = [n for n, guess in zip(right, guesses, strict=True) if n == len(guess)]
        total += probability * ((1 - STALE_SHARE) * max(right) + STALE_SHARE * max(whole, default=-age))
    return total


def candidates(drafts: Sequence[Alternatives], replaced: bool) -> list[Guess]:
    main = tuple(tokens[0][0] for tokens in drafts)
    guesses = [main[:length] for length in range(len(drafts) + 1)]
    for at, (_, *others) in enumerate(drafts if replaced else ()):
        for token, _ in others:
            guesses += [
                (*main[:at], token, *main[at + 1 : length]) for length in range(at + 1, len(drafts) + 1)
            ]
    return guesses


def probability(guess: Guess, drafts: Sequence[Alternatives]) -> float:
    return math.prod(dict(tokens)[token] for token, tokens in zip(guess, drafts, strict=False))


@pytest.mark.medium
@settings(max_examples=200)
@given(any_drafts(), st.integers(1, 3), st.integers(1, 6))
def test_each_guess_is_the_one_that_gains_most(drafts: list[Alternatives], age: int, most: int) -> None:
    chosen = choose_guesses(drafts, age, CostBudget([1.0] * most, 1.0))
    assert 1 <= len(chosen) <= most and len({*chosen}) == len(chosen)
    main = {*candidates(drafts, False)}
    possible = [
        guess
        for guess in candidates(drafts, most > 1)
        if guess in main or probability(guess, drafts) >= MIN_REPLACED - 1e-9
    ]
    for count in range(1, len(chosen) + 1):
        best = max(value([*chosen[: count - 1], guess], drafts, age) for guess in possible)
        assert value(chosen[:count], drafts, age) == pytest.approx(best, abs=1e-6)


def test_guesses_end_where_they_gain_less_than_they_cost() -> None:
    drafts = [[(at, 0.9), (50 + at, 0.06)] for at in range(6)]
    budgets = [CostBudget([1 + cost * more for more in range(16)], 1.0) for cost in (0.0, 0.03, 5.0)]
    lengths = [len(choose_guesses(drafts, 1, budget)) for budget in budgets]
    assert lengths[0] > lengths[1] > lengths[2] == 1


@given(any_drafts(), st.integers(0, 40), st.integers(1, 6))
def test_reweighed_drafts_are_distributions_of_the_same_tokens(
    drafts: list[Alternatives], last: int, age: int
) -> None:
    reweighed = reweigh(drafts, last, age)
    for before, after in zip(drafts, reweighed, strict=True):
        assert dict(before).keys() == dict(after).keys()
        assert all(p > 0 for _, p in after) and sum(p for _, p in after) <= 1 + 1e-9


def test_the_first_of_old_drafts_is_doubted_most() -> None:
    drafts = [[(at, 0.8), (50 + at, 0.1)] for at in range(4)]
    fresh, old = ([p for (_, p), _ in reweigh(drafts, 99, age)] for age in (1, 3))
    assert all(p > 0.8 for p in fresh) and fresh == pytest.approx([fresh[0]] * 4)
    assert old == sorted(old) and old[0] < 0.8
    assert all(p < q for p, q in zip(old, fresh, strict=True))


def test_a_draft_that_repeats_its_neighbour_gives_way() -> None:
    once = [(5, 0.6), (7, 0.3)]
    (first, _), (other, _) = reweigh([once], 5, 1)[0]
    assert (first, other) == (7, 5)
    assert [position[0][0] for position in reweigh([once, [(5, 0.9), (8, 0.05)]], 4, 1)] == [7, 5]
    assert reweigh([once], 4, 1)[0][0][0] == 5
    assert reweigh([[(5, 1.0)]], 5, 1) == [[(5, 1.0)]]  # nothing else is known
