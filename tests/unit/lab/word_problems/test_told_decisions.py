"""Decisions about told quantities: the right label fits what is told, and none that is held out is trained."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import pytest

from lopa_lab.word_problems.decisions import Decision, decision_stream, held_out_decisions

pytestmark = pytest.mark.medium


def training(seed: int, count: int) -> list[Decision]:
    return list(itertools.islice(decision_stream(seed, held_out=False), count))


def test_a_seed_gives_the_same_decisions_and_none_is_held_out() -> None:
    assert training(2, 30) == training(2, 30)
    held_out = {decision.input for decision in held_out_decisions(2, 100)}
    assert held_out.isdisjoint(decision.input for decision in training(2, 500))


def test_the_right_label_fits_what_is_told() -> None:
    """Checked by another reading of the texts: of who has how many of one thing, and of ages."""
    checked: Counter[str] = Counter()
    for decision in training(3, 2000):
        told = {
            name: int(number)
            for name, number in re.findall(r"(\w+) (?:has|has got|owns|is) (\d+)", decision.input)
        }
        asked = decision.question.message
        who = re.match(r"Who (?:has the (most|fewest)|is the (oldest|youngest))", asked)
        if who and len(told) >= 2 and decision.kind == "choice":
            choices = dict(re.findall(r"^([A-Z]): (.+)$", asked, re.MULTILINE))
            right = choices[decision.question.labels[decision.right]].split()[-1]
            if right in told and all(choice.split()[-1] in told for choice in choices.values()):
                best = max if who[1] == "most" or who[2] == "oldest" else min
                assert told[right] == best(told[choice.split()[-1]] for choice in choices.values()), decision
                checked["most"] += 1
        than = re.match(r"Is (\w+) (more than|less than|exactly) (\d+) years old", asked)
        if than and than[1] in told:
            number, limit = told[than[1]], int(than[3])
            holds = {"more than": number > limit, "less than": number < limit, "exactly": number == limit}[
                than[2]
            ]
            assert decision.question.labels[decision.right] == ("yes" if holds else "no"), decision
            checked["than"] += 1
    assert min(checked["most"], checked["than"]) > 10
