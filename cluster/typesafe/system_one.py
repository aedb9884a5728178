"""Requests for decisions, in TypeSafe's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from cluster.choices.decision_message import DecisionMessage
from cluster.openai.decisions import DecisionOptions
from cluster.openai.errors import ApiError, short_repr
from cluster.openai.request_model import RequestModel
from cluster.typesafe.errors import UnprocessableError, unprocessable
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
from lopa_ray.text.client_object import TAG_MARK, first_error, type_tag
from lopa_ray.text.json_content import check_json, json_text

HEADER = "x-typesafe-sdk"
"""Its clients send this header, in any case of letters."""

REQUEST_ID_HEADER = "x-typesafe-request-id"
"""Its clients read the request's id from this header of the response."""

MODEL_FIELDS = {"choices": "criteria", "levels": "criteria", "input": "state"}
"""Fields of questions as the model's side names them → as this protocol does."""

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

OptionalContent: TypeAlias = Annotated[
    Any,
    BeforeValidator(
        lambda value: None if value is None else _check_content(value),
        json_schema_input_type=str | dict[str, Any] | list[Any] | None,
    ),
]
"""The same, or nothing."""


class NoulCriteria(RequestModel):
    """What counts as yes, and what as no."""

    true: OptionalContent = None
    """Yes."""

    false: OptionalContent = None
    """No."""


class NoulParam(RequestModel):
    """A question that is answered by yes or no."""

    type: Literal["noul"]
    """Names the type of the question."""

    instructions: OptionalContent = None
    """The question or statement. May be left out where `criteria` has a description."""

    criteria: NoulCriteria | None = None
    """What counts as yes, and what as no."""

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        described = self.criteria is not None and (self.criteria.true, self.criteria.false) != (None, None)
        if self.instructions is None and not described:
            raise PydanticCustomError("missing", "missing", {"field": "instructions"})
        return self

    def as_question(self, name: str) -> Question:
        """The same for the model."""
        criteria = self.criteria or NoulCriteria()
        return PredicateQuestion(_text(self.instructions), name, _text(criteria.true), _text(criteria.false))


class ChoiceCriteriaParam(RequestModel):
    """Which one of some choices fits."""

    type: Literal["choice"]
    """Names the type of the question."""

    instructions: OptionalContent = None
    """What to decide."""

    criteria: dict[str, OptionalContent] = Field(min_length=1, max_length=MAX_VALUES)
    """Name of each choice → when it applies."""

    def as_question(self, name: str) -> Question:
        """The same for the model."""
        options = [Option(choice, _text(description)) for choice, description in self.criteria.items()]
        return ChoiceQuestion(_text(self.instructions), options, name)


class ScoreCriteriaParam(RequestModel):
    """Which one of some ordered levels fits."""

    type: Literal["score"]
    """Names the type of the question."""

    instructions: OptionalContent = None
    """What to rate."""

    criteria: list[Content] = Field(min_length=1, max_length=MAX_VALUES)
    """Descriptions of the levels, from number 0 on."""

    def as_question(self, name: str) -> Question:
        """The same for the model."""
        return ScoreQuestion(_text(self.instructions), [json_text(level) for level in self.criteria], name)


class BoxParam(RequestModel):
    """A place in an image, which no model here reads."""

    type: Literal["box"]
    """Names the type of the question."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        raise PydanticCustomError("unsupported", NO_IMAGES, {"field": "type"})

    def as_question(self, name: str) -> Question:
        """Raises NotImplementedError: there are none."""
        raise NotImplementedError(name)


QuestionParam: TypeAlias = Annotated[
    Annotated[NoulParam, Tag(f"{TAG_MARK}noul")]
    | Annotated[ChoiceCriteriaParam, Tag(f"{TAG_MARK}choice")]
    | Annotated[ScoreCriteriaParam, Tag(f"{TAG_MARK}score")]
    | Annotated[BoxParam, Tag(f"{TAG_MARK}box")],
    Discriminator(
        type_tag,
        custom_error_type="unknown_question",
        custom_error_message="questions of the types noul, choice and score",
    ),
]


class SystemOneRequest(RequestModel):
    """Questions about a state."""

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"assets": ({},)}

    model: str
    """Which of the models that are served."""

    state: Content
    """What the questions are about."""

    questions: dict[str, QuestionParam] = Field(min_length=1, max_length=MAX_QUESTIONS)
    """Name → question."""

    lopa: DecisionOptions | None = None
    """Settings that this protocol does not have."""

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Self:
        """Raises UnprocessableError for the first thing that is wrong."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            wrong, detail = first_error(error, cls), error.errors(include_url=False)[0]
            location = [part for part in detail["loc"] if not str(part).startswith(TAG_MARK)]
            location += [field] if (field := detail.get("ctx", {}).get("field")) is not None else []
            raise UnprocessableError(location, wrong.message, wrong.code) from None

    def as_message(self, request_id: str, client: str) -> DecisionMessage:
        """The request to a group. Raises UnprocessableError for what is wrong in it."""
        options = self.lopa or DecisionOptions()
        questions = tuple(question.as_question(name) for name, question in self.questions.items())
        try:
            check_questions(questions)
        except PromptError as error:
            wrong = ApiError(400, str(error), "invalid_value", param=error.setting)
            raise self.unprocessable(wrong) from None
        return DecisionMessage(
            request_id,
            json_text(self.state),
            questions,
            options.settings(),
            client,
            deadline_s=options.deadline,
        )

    def unprocessable(self, error: ApiError) -> ApiError:
        """An error about this request as clients expect it."""
        return unprocessable(error, list(self.questions), MODEL_FIELDS)


def _text(content: Any) -> str | None:
    return None if content is None else json_text(content)
