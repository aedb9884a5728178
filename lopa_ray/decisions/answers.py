"""The answers to questions: probabilities of values, from their log-likelihoods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lopa_ray.config.decision_settings import DecisionType
from lopa_ray.decisions.questions import ChoiceQuestion, PredicateQuestion, Question, Value, options_of


@dataclass(frozen=True, slots=True)
class PredicateAnswer:
    """The answer to a `PredicateQuestion`."""

    name: str | None
    probability: float
    """The probability of yes, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """The answer to a `ChoiceQuestion`."""

    name: str | None
    choice: Value
    """The most probable value; of equal values the first."""
    confidence: float
    """See `confidence_of`."""
    probabilities: dict[Value, float]
    """The probability of each value, in the question's order; their sum is 1."""


@dataclass(frozen=True, slots=True)
class ScoreAnswer:
    """The answer to a `ScoreQuestion`."""

    name: str | None
    score: float
    """The mean of the levels' numbers, from 0 on, weighted by their probabilities."""
    confidence: float
    """See `confidence_of`."""
    probabilities: dict[str, float]
    """The probability of each level by its label, in order; their sum is 1."""


Answer: TypeAlias = PredicateAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True, slots=True)
class DecisionResult:
    """All answers about one input."""

    answers: tuple[Answer, ...]
    """Answers in the order of the questions."""
    log_likelihoods: tuple[tuple[tuple[float, ...], ...], ...]
    """Log-likelihoods in nats, by question and by order of its values (see `DecisionSettings.rotations`), of each value
    in the question's order, before temperature and normalisation."""
    input_tokens: int
    """Tokens of the input, and of all its questions."""
    cached_tokens: int
    """Tokens of the input that were not computed, since K/V of the same input were stored."""
    saved_tokens: int
    """Tokens whose K/V were stored for later requests."""
    output_tokens: int
    """Positions that answer: the slots of all questions."""
    steps: int
    forwards: int
    """Branch evaluations, over all steps."""
    seconds: float
    """Wall-clock time from submission to the last step."""


def probabilities_of(orders: Sequence[Sequence[float]], temperature: float = 1.0) -> list[float]:
    """The probability of each value: the softmax of its log-likelihoods ÷ temperature, averaged over the orders."""
    averaged = [0.0] * len(orders[0])
    for log_likelihoods in orders:
        largest = max(log_likelihoods)
        weights = [math.exp((value - largest) / temperature) for value in log_likelihoods]
        total = sum(weights)
        for at, weight in enumerate(weights):
            averaged[at] += weight / total / len(orders)
    return averaged


def confidence_of(probabilities: Sequence[float]) -> float:
    """(k · max p - 1) ÷ (k - 1) over k values: 0 when all are alike, 1 when one is certain; 1 for a single value."""
    count = len(probabilities)
    return 1.0 if count == 1 else max(0.0, (count * max(probabilities) - 1) / (count - 1))


def type_of(question: Question) -> DecisionType:
    if isinstance(question, PredicateQuestion):
        return "predicate"
    return "choice" if isinstance(question, ChoiceQuestion) else "score"


def answer(question: Question, orders: Sequence[Sequence[float]], temperature: float = 1.0) -> Answer:
    """The answer, by the log-likelihoods of the values in each order of them, divided by `temperature`."""
    probabilities = probabilities_of(orders, temperature)
    if isinstance(question, PredicateQuestion):
        return PredicateAnswer(question.name, probabilities[0])
    values, confidence = [option.value for option in options_of(question)], confidence_of(probabilities)
    if isinstance(question, ChoiceQuestion):
        by_value = dict(zip(values, probabilities, strict=True))
        best = values[probabilities.index(max(probabilities))]
        return ChoiceAnswer(question.name, best, confidence, by_value)
    score = sum(level * probability for level, probability in enumerate(probabilities))
    by_label = dict(zip(map(str, values), probabilities, strict=True))
    return ScoreAnswer(question.name, score, confidence, by_label)
