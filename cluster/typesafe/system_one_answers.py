"""Answers to decisions, in TypeSafe's shape."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from cluster.openai.response_model import ResponseModel
from cluster.typesafe.system_one import QuestionParam, ScoreCriteriaParam, SystemOneRequest
from lopa_ray.decisions.answers import Answer, ChoiceAnswer, DecisionResult, PredicateAnswer, ScoreAnswer


class NoulAnswerObject(ResponseModel):
    """The answer to a noul."""

    type: Literal["noul"]
    noul: float
    """The probability of yes."""


class ChoiceAnswerObject(ResponseModel):
    """The answer to a choice."""

    type: Literal["choice"]
    choice: str
    """The most probable choice."""
    confidence: float
    """0 when all choices are alike, 1 when one is certain."""
    probabilities: dict[str, float]
    """Of each choice; their sum is 1."""


class ScoreAnswerObject(ResponseModel):
    """The answer to a score."""

    type: Literal["score"]
    score: float
    """The mean of the levels, weighted by their probabilities."""
    confidence: float
    """0 when all levels are alike, 1 when one is certain."""
    legend: dict[str, str | dict[str, Any] | list[Any]]
    """Level → its description."""
    probabilities: dict[str, float]
    """Of each level; their sum is 1."""


AnswerObject: TypeAlias = NoulAnswerObject | ChoiceAnswerObject | ScoreAnswerObject


class SystemOneUsage(ResponseModel):
    """Tokens of a request."""

    input_tokens: int
    output_tokens: int


class SystemOneResponse(ResponseModel):
    """The answers, by the names of their questions."""

    model: str
    answers: dict[str, AnswerObject]
    usage: SystemOneUsage


def system_one_response(model: str, request: SystemOneRequest, result: DecisionResult) -> SystemOneResponse:
    """The response to a request."""
    answers = {
        name: _answer_object(question, answer)
        for (name, question), answer in zip(request.questions.items(), result.answers, strict=True)
    }
    usage = SystemOneUsage(input_tokens=result.input_tokens, output_tokens=result.output_tokens)
    return SystemOneResponse(model=model, answers=answers, usage=usage)


def _answer_object(question: QuestionParam, answer: Answer) -> AnswerObject:
    if isinstance(answer, PredicateAnswer):
        return NoulAnswerObject(type="noul", noul=answer.probability)
    if isinstance(answer, ChoiceAnswer):
        by_name = {str(value): probability for value, probability in answer.probabilities.items()}
        return ChoiceAnswerObject(
            type="choice", choice=str(answer.choice), confidence=answer.confidence, probabilities=by_name
        )
    assert isinstance(answer, ScoreAnswer) and isinstance(question, ScoreCriteriaParam)
    return ScoreAnswerObject(
        type="score",
        score=answer.score,
        confidence=answer.confidence,
        legend={str(level): description for level, description in enumerate(question.criteria)},
        probabilities={
            str(level): probability for level, probability in enumerate(answer.probabilities.values())
        },
    )
