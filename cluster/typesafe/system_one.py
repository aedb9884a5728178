"""Requests for decisions, in TypeSafe's shape."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from cluster.choices.decision_message import DecisionMessage
from cluster.openai.decisions.request import DecisionOptions, DecisionRequest
from cluster.openai.errors import ApiError, short_repr
from cluster.openai.request_model import RequestModel
from cluster.typesafe.errors import UnprocessableError, unprocessable
from cluster.typesafe.system_one_answers import (
    AnswerObject,
    ChoiceAnswerObject,
    NoulAnswerObject,
    ScoreAnswerObject,
    SystemOneResponse,
    SystemOneUsage,
)
from lopa_ray.decisions.answers import ChoiceAnswer, DecisionResult, PredicateAnswer, ScoreAnswer
from lopa_ray.decisions.questions import (
    MAX_QUESTIONS,
    MAX_VALUES,
    ChoiceQuestion,
    Option,
    PredicateQuestion,
    Question,
    ScoreQuestion,
)
from lopa_ray.text.client_object import ByType, first_error
from lopa_ray.text.json_content import check_json, json_text

HEADER = "x-typesafe-sdk"  # its clients send this header, in any case of letters
REQUEST_ID_HEADER = "x-typesafe-request-id"  # of the response

MODEL_FIELDS = {"choices": "criteria", "levels": "criteria", "input": "state"}
"""The model's side → this protocol."""

NO_IMAGES = "is not supported: models here read text alone; leave images out"


def _check_content(value: Any) -> Any:
    if not isinstance(value, str | dict | list):
        raise ValueError(f"got {short_repr(value)}; allowed: text, an object or a list")
    check_json(value)
    return value


Content: TypeAlias = Annotated[
    Any, BeforeValidator(_check_content, json_schema_input_type=str | dict[str, Any] | list[Any])
]
"""Text, or JSON, which the model reads as text: at most 32 levels, 10,000 values, and 256 KiB."""


class NoulCriteria(RequestModel):
    """Descriptions of yes and of no."""

    true: Content | None = None
    false: Content | None = None


class AnyQuestion(RequestModel):
    """A question of any type."""

    @abstractmethod
    def as_question(self, name: str) -> Question:
        """The question for the model."""

    @abstractmethod
    def answer_object(self, answer: Any) -> AnswerObject:
        """The answer in the shape of this protocol."""


class NoulParam(AnyQuestion):
    """A question that is answered by yes or no."""

    type: Literal["noul"]
    instructions: Content | None = None
    """May be left out where `criteria` has a description."""

    criteria: NoulCriteria | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        described = self.criteria is not None and (self.criteria.true, self.criteria.false) != (None, None)
        if self.instructions is None and not described:
            raise PydanticCustomError("missing", "missing", {"field": "instructions"})
        return self

    def as_question(self, name: str) -> Question:
        criteria = self.criteria or NoulCriteria()
        return PredicateQuestion(_text(self.instructions), name, _text(criteria.true), _text(criteria.false))

    def answer_object(self, answer: PredicateAnswer) -> AnswerObject:
        return NoulAnswerObject(type="noul", noul=answer.probability)


class ChoiceCriteriaParam(AnyQuestion):
    """Asks which of some choices fits."""

    type: Literal["choice"]
    instructions: Content | None = None

    criteria: dict[str, Content | None] = Field(min_length=1, max_length=MAX_VALUES)
    """Name of each choice → when it applies."""

    def as_question(self, name: str) -> Question:
        options = [Option(choice, _text(description)) for choice, description in self.criteria.items()]
        return ChoiceQuestion(_text(self.instructions), options, name)

    def answer_object(self, answer: ChoiceAnswer) -> AnswerObject:
        return ChoiceAnswerObject(
            type="choice",
            choice=str(answer.choice),
            confidence=answer.confidence,
            probabilities={str(value): probability for value, probability in answer.probabilities.items()},
        )


class ScoreCriteriaParam(AnyQuestion):
    """Asks which of some ordered levels fits."""

    type: Literal["score"]
    instructions: Content | None = None

    criteria: list[Content] = Field(min_length=1, max_length=MAX_VALUES)
    """Descriptions of the levels, from number 0 on."""

    def as_question(self, name: str) -> Question:
        return ScoreQuestion(_text(self.instructions), [json_text(level) for level in self.criteria], name)

    def answer_object(self, answer: ScoreAnswer) -> AnswerObject:
        return ScoreAnswerObject(
            type="score",
            score=answer.score,
            confidence=answer.confidence,
            legend={str(level): description for level, description in enumerate(self.criteria)},
            probabilities={str(level): value for level, value in enumerate(answer.probabilities.values())},
        )


class BoxParam(AnyQuestion):
    """A place in an image, which no model here reads. Abstract: validation refuses each one before it is made."""

    type: Literal["box"]

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        raise PydanticCustomError("unsupported", NO_IMAGES, {"field": "type"})


QuestionParam: TypeAlias = Annotated[
    NoulParam | ChoiceCriteriaParam | ScoreCriteriaParam | BoxParam,
    ByType(allowed="questions of the types noul, choice and score"),
]


class SystemOneRequest(DecisionRequest):
    """Questions about a state."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"assets": ({},)}

    model: str
    """A model that is served."""

    state: Content
    """The subject of the questions."""

    questions: dict[str, QuestionParam] = Field(min_length=1, max_length=MAX_QUESTIONS)
    lopa: DecisionOptions | None = None

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Self:
        """Raises UnprocessableError for the first thing that is wrong."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            wrong = first_error(error, cls)
            raise UnprocessableError(wrong.location, wrong.message, wrong.code) from None

    def as_message(self, request_id: str, client: str) -> DecisionMessage:
        options = self.lopa or DecisionOptions()
        questions = self._checked(question.as_question(name) for name, question in self.questions.items())
        given, settings = json_text(self.state), options.settings()
        return DecisionMessage(request_id, given, questions, settings, client, deadline_s=options.deadline)

    def respond(self, model: str, result: DecisionResult) -> SystemOneResponse:
        answers = {
            name: question.answer_object(answer)  # type: ignore[arg-type]  # it is of the question's type
            for (name, question), answer in zip(self.questions.items(), result.answers, strict=True)
        }
        usage = SystemOneUsage(input_tokens=result.input_tokens, output_tokens=result.output_tokens)
        return SystemOneResponse(model=model, answers=answers, usage=usage)

    def as_error(self, error: ApiError) -> ApiError:
        return unprocessable(error, list(self.questions), MODEL_FIELDS)


def _text(content: Any) -> str | None:
    return None if content is None else json_text(content)
