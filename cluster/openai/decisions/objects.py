"""Answers to decisions, in OpenAI's shape."""

from __future__ import annotations

from typing import Literal

from cluster.openai.response_model import ResponseModel
from lopa_ray.decisions.answers import Answer, ChoiceAnswer, DecisionResult, PredicateAnswer


class PredicateObject(ResponseModel):
    type: Literal["predicate"]
    name: str | None
    probability: float
    """That the statement is true."""


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
    """In the order of the choices; their sum is 1."""


class ScoreProbability(ResponseModel):
    label: str
    value: int
    """Its number, from 0 on."""
    probability: float


class ScoreObject(ResponseModel):
    type: Literal["score"]
    name: str | None
    score: float
    """The mean of the levels' numbers, weighted by their probabilities."""
    confidence: float
    """0 when all levels are alike, 1 when one is certain."""
    probabilities: list[ScoreProbability]
    """In the order of the levels; their sum is 1."""


class DecisionInputDetails(ResponseModel):
    cached_tokens: int
    cache_write_tokens: int


class DecisionOutputDetails(ResponseModel):
    """Nothing is reasoned."""

    reasoning_tokens: int


class DecisionUsage(ResponseModel):
    input_tokens: int
    """Of the input, once, and of all questions."""
    input_tokens_details: DecisionInputDetails
    output_tokens: int
    """Positions that answer."""
    output_tokens_details: DecisionOutputDetails
    total_tokens: int


class DecisionStats(ResponseModel):
    steps: int
    forwards: int
    """Branch evaluations, over all steps."""
    seconds: float


class DecisionObject(ResponseModel):
    """The answers to all questions, in their order."""

    model: str
    answers: list[PredicateObject | ChoiceObject | ScoreObject]
    usage: DecisionUsage
    lopa: DecisionStats


def answer_object(answer: Answer) -> PredicateObject | ChoiceObject | ScoreObject:
    """An answer in OpenAI's shape."""
    if isinstance(answer, PredicateAnswer):
        return PredicateObject(type="predicate", name=answer.name, probability=answer.probability)
    if isinstance(answer, ChoiceAnswer):
        return ChoiceObject(
            type="choice",
            name=answer.name,
            choice=answer.choice,
            confidence=answer.confidence,
            probabilities=[
                ChoiceProbability(value=value, probability=probability)
                for value, probability in answer.probabilities.items()
            ],
        )
    return ScoreObject(
        type="score",
        name=answer.name,
        score=answer.score,
        confidence=answer.confidence,
        probabilities=[
            ScoreProbability(label=label, value=value, probability=probability)
            for value, (label, probability) in enumerate(answer.probabilities.items())
        ],
    )


def decision_object(model: str, result: DecisionResult) -> DecisionObject:
    """The response to a request."""
    return DecisionObject(
        model=model,
        answers=[answer_object(answer) for answer in result.answers],
        usage=DecisionUsage(
            input_tokens=result.input_tokens,
            input_tokens_details=DecisionInputDetails(
                cached_tokens=result.cached_tokens, cache_write_tokens=result.saved_tokens
            ),
            output_tokens=result.output_tokens,
            output_tokens_details=DecisionOutputDetails(reasoning_tokens=0),
            total_tokens=result.input_tokens + result.output_tokens,
        ),
        lopa=DecisionStats(steps=result.steps, forwards=result.forwards, seconds=result.seconds),
    )
