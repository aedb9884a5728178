"""Answers to decisions, in TypeSafe's shape."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from cluster.openai.response_model import ResponseModel


class NoulAnswerObject(ResponseModel):
    type: Literal["noul"]
    noul: float
    """The probability of yes."""


class ChoiceAnswerObject(ResponseModel):
    type: Literal["choice"]
    choice: str
    """The most probable choice."""
    confidence: float
    """0 when all choices are alike, 1 when one is certain."""
    probabilities: dict[str, float]
    """The probability of each choice; their sum is 1."""


class ScoreAnswerObject(ResponseModel):
    type: Literal["score"]
    score: float
    """The mean of the levels, weighted by their probabilities."""
    confidence: float
    """0 when all levels are alike, 1 when one is certain."""
    legend: dict[str, str | dict[str, Any] | list[Any]]
    """Level → its description."""
    probabilities: dict[str, float]
    """The probability of each level; their sum is 1."""


AnswerObject: TypeAlias = NoulAnswerObject | ChoiceAnswerObject | ScoreAnswerObject


class SystemOneUsage(ResponseModel):
    input_tokens: int
    output_tokens: int


class SystemOneResponse(ResponseModel):
    """The answers, by the names of their questions."""

    model: str
    answers: dict[str, AnswerObject]
    usage: SystemOneUsage
