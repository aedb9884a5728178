"""The slot of a question: its values' prefixes, and the chain of log-probabilities."""

from __future__ import annotations

import pytest

from lopa_ray.decoding.question_tokens import QuestionTokens
from lopa_ray.errors import PromptError

END = 48


def test_an_end_token_closes_values_shorter_than_the_longest() -> None:
    slot = QuestionTokens.of((9,), [[1], [1, 2, 3], [4, 5]], END)
    assert slot.values == ((1, END), (1, 2, 3), (4, 5, END)) and slot.slot_length == 3


def test_each_distinct_prefix_has_the_tokens_that_follow_it() -> None:
    slot = QuestionTokens.of((9,), [[1], [1, 2, 3], [4, 5], [1, 2, 6]], END)
    assert slot.candidates_by_prefix == {
        (): (1, 4),
        (1,): (END, 2),
        (1, 2): (3, 6),
        (4,): (5,),
        (4, 5): (END,),
    }


def test_a_log_likelihood_is_the_sum_along_the_value() -> None:
    slot = QuestionTokens.of((9,), [[1], [1, 2]], END)
    assert slot.log_likelihoods([[-0.5], [-2.0, -0.25]]) == [-2.5, -0.75]


@pytest.mark.parametrize("values", [[], [[]], [[1], []], [[1], [1]], [[1, END], [1], [1, 2]]])
def test_missing_and_equal_values_are_refused(values: list[list[int]]) -> None:
    with pytest.raises(PromptError):
        QuestionTokens.of((9,), values, END)
