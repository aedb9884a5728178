"""Answers to decisions, in OpenAI's shape."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from cluster.openai.response_model import ResponseModel
from cluster.openai.responses.objects import ResponseUsage
from lopa_ray.decisions.answers import Answer, ChoiceAnswer, DecisionResult, PredicateAnswer


class PredicateObject(ResponseModel):
    type: Literal["predicate"]
    name: str | None
    probability: float
    """The probability that the statement is true."""


class ChoiceProbability(ResponseModel):
    value: str | bool
    probability: float


class ChoiceObject(ResponseModel):
    type: Literal["choice"]
    name: str | None
    choice: str | bool
    """The most probable value."""
    confidence: float
    """0 when all values are alike, 1 when one is certain."""
    probabilities: list[ChoiceProbability]
    """Probabilities in the order of the choices; their sum is 1."""


class ScoreProbability(ResponseModel):
    label: str
    value: int
    """The level's number, from 0 on."""
    probability: float


class ScoreObject(ResponseModel):
    type: Literal["score"]
    name: str | None
    score: float
    """The mean of the levels' numbers, weighted by their probabilities."""
    confidence: float
    """0 when all levels are alike, 1 when one is certain."""
    probabilities: list[ScoreProbability]
    """Probabilities in the order of the levels; their sum is 1."""


class DecisionStats(ResponseModel):
    steps: int
    forwards: int
    """Branch evaluations, over all steps."""
    seconds: float


class DecisionObject(ResponseModel):
    """The answers to all questions, in their order."""

    model: str
    answers: list[PredicateObject | ChoiceObject | ScoreObject]
    usage: ResponseUsage
    """The input counts once, and all questions; output tokens are the positions that answer."""
    lopa: DecisionStats


def _answer_object(answer: Answer) -> PredicateObject | ChoiceObject | ScoreObject:
    fields = asdict(answer)
    if isinstance(answer, PredicateAnswer):
        return PredicateObject(type="predicate", **fields)
    weights = fields.pop("probabilities").items()
    if isinstance(answer, ChoiceAnswer):
        choices = [ChoiceProbability(value=value, probability=weight) for value, weight in weights]
        return ChoiceObject(type="choice", **fields, probabilities=choices)
    levels = [
        ScoreProbability(label=label, value=value, probability=weight)
        for value, (label, weight) in enumerate(weights)
    ]
    return ScoreObject(type="score", **fields, probabilities=levels)


def decision_object(model: str, result: DecisionResult) -> DecisionObject:
    return DecisionObject(
        model=model,
        answers=[_answer_object(answer) for answer in result.answers],
        usage=ResponseUsage.of(
            result.input_tokens, result.output_tokens, cached=result.cached_tokens, stored=result.saved_tokens
        ),
        lopa=DecisionStats(steps=result.steps, forwards=result.forwards, seconds=result.seconds),
    )
