"""Requests for decisions, in OpenAI's shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from cluster.choices.decision_message import DecisionMessage
from cluster.openai.decisions.content import Content, DecisionInputParam, content_text, decision_input
from cluster.openai.decisions.objects import DecisionObject, decision_object
from cluster.openai.errors import ApiError
from cluster.openai.request_model import UNUSED, ModelRequest, RequestModel
from cluster.openai.response_model import ResponseModel
from lopa_ray.config.decision_settings import Prefix
from lopa_ray.config.http_field import MAX_INT
from lopa_ray.decisions.answers import DecisionResult
from lopa_ray.decisions.questions import (
    MAX_QUESTIONS,
    MAX_VALUES,
    ChoiceQuestion,
    Option,
    PredicateQuestion,
    Question,
    ScoreQuestion,
    check_questions,
)
from lopa_ray.errors import PromptError
from lopa_ray.text.client_object import ByType


class DecisionChoice(RequestModel):
    value: str | bool
    """Unique among the choices; a text and a boolean are two values."""

    description: str | None = None
    """When it applies."""


class DecisionLevel(RequestModel):
    """A level of a score."""

    label: str
    """Unique among the levels."""

    description: str | None = None
    """When it applies."""


class QuestionBase(RequestModel):
    instructions: Content
    """The statement, the question, or what to decide or rate: text, or parts."""

    name: str | None = None
    """The answer has it; it need not be unique."""


class PredicateParam(QuestionBase):
    """Asks how likely a statement about the input is to be true."""

    type: Literal["predicate"]

    def as_question(self) -> Question:
        return PredicateQuestion(content_text(self.instructions), self.name)


class ChoiceParam(QuestionBase):
    """Asks which of some choices fits."""

    type: Literal["choice"]

    choices: list[DecisionChoice] = Field(min_length=2, max_length=MAX_VALUES)

    def as_question(self) -> Question:
        options = [Option(choice.value, choice.description) for choice in self.choices]
        return ChoiceQuestion(content_text(self.instructions), options, self.name)


class ScoreParam(QuestionBase):
    """Asks which of some ordered levels fits."""

    type: Literal["score"]

    levels: list[DecisionLevel] = Field(min_length=1, max_length=MAX_VALUES)
    """The levels, from number 0 on."""

    def as_question(self) -> Question:
        options = [Option(level.label, level.description) for level in self.levels]
        return ScoreQuestion(content_text(self.instructions), options, self.name)


QuestionParam: TypeAlias = Annotated[
    PredicateParam | ChoiceParam | ScoreParam,
    ByType(allowed="questions of the types predicate, choice and score"),
]


class DecisionOptions(RequestModel):
    """Settings that OpenAI's API does not have."""

    prefix: Prefix | None = None
    """input: all questions read K/V of the input alone. joint: each is computed with the input."""

    rotations: int | None = Field(default=None, ge=1, le=MAX_VALUES)
    """Orders of a question's choices whose probabilities are averaged."""

    deadline: float | None = Field(default=None, gt=0, le=86400)
    """Seconds after which the request ends with 504."""

    def settings(self) -> dict[str, Any]:
        return self.model_dump(include={"prefix", "rotations"}, exclude_none=True)


class DecisionRequest(RequestModel, ABC):
    """Questions, in the shape of any protocol."""

    model: str | None

    @abstractmethod
    def as_message(self, request_id: str, client: str) -> DecisionMessage:
        """The request to a group. Raises ApiError if it is wrong."""

    @abstractmethod
    def respond(self, model: str, result: DecisionResult) -> ResponseModel:
        """The answers."""

    def as_error(self, error: ApiError) -> ApiError:
        """An error about this request as clients expect it."""
        return error

    def _checked(self, questions: Iterable[Question]) -> tuple[Question, ...]:
        checked = tuple(questions)
        try:
            check_questions(checked)
        except PromptError as error:
            raise self.as_error(ApiError(400, str(error), "invalid_value", param=error.setting)) from None
        return checked


class DecisionsRequest(ModelRequest, DecisionRequest):
    """Questions about an input."""

    input: DecisionInputParam
    """The subject of the questions: text, or messages, calls and their outputs."""

    questions: list[QuestionParam] = Field(min_length=1, max_length=MAX_QUESTIONS)
    """The questions, whose answers come in the same order."""

    priority: int | None = Field(default=None, ge=-MAX_INT, le=MAX_INT)
    """Requests with a lower value are decoded earlier than others of the same client; 0 is the default."""

    prompt_cache_key: str | None = UNUSED
    prompt_cache_options: dict[str, Any] | None = UNUSED
    safety_identifier: str | None = UNUSED
    lopa: DecisionOptions | None = None

    def as_message(self, request_id: str, client: str) -> DecisionMessage:
        options = self.lopa or DecisionOptions()
        questions = self._checked(question.as_question() for question in self.questions)
        given, settings, priority = decision_input(self.input), options.settings(), self.priority or 0
        return DecisionMessage(request_id, given, questions, settings, client, priority, options.deadline)

    def respond(self, model: str, result: DecisionResult) -> DecisionObject:
        return decision_object(model, result)
