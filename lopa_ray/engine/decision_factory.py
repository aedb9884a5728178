"""From an input and its questions to a session, for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lopa_ray.config.decision_settings import DecisionSettings
from lopa_ray.decisions.encoded_input import EncodedInput
from lopa_ray.decisions.pending import PendingDecision
from lopa_ray.decisions.questions import (
    PredicateQuestion,
    Question,
    check_questions,
    field_error,
    orders_of,
    wording,
)
from lopa_ray.decoding.answer_slot import AnswerSlot
from lopa_ray.decoding.decision_session import DecisionSession, QuestionTokens
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import PromptTooLongError, SettingsError
from lopa_ray.scheduling.step_limit import StepLimit
from lopa_ray.text.chat_message import read_messages
from lopa_ray.text.chat_template import Message
from lopa_ray.text.decision_prompt import DecisionQuestion
from lopa_ray.text.tokenizer import require_tokenizer

DecisionInput: TypeAlias = str | Sequence[Message]
"""What questions are about: a text, or the messages of a chat."""

AnyQuestion: TypeAlias = Question | str
"""A question; a text is a predicate."""

ChangedDecisions: TypeAlias = DecisionSettings | Mapping[str, Any]
"""Settings of decisions: all of them, or by name those that differ from the configuration's."""


@dataclass(frozen=True, slots=True)
class DecisionTask:
    """An input and the questions about it."""

    input: DecisionInput
    questions: Sequence[AnyQuestion]


def new_decision(
    factory: SessionFactory, task: DecisionTask, settings: ChangedDecisions | None = None, **changes: Any
) -> PendingDecision:
    """The session of a task. `settings` and `changes` override the configuration's section `decisions`.

    Raises SettingsError for a model that fills no masks and for wrong settings, PromptTooLongError and PromptError,
    whose `setting` is the field, for an input or questions that cannot be computed.
    """
    own = _settings(factory, settings, changes)
    questions = [
        PredicateQuestion(question) if isinstance(question, str) else question for question in task.questions
    ]
    check_questions(questions)
    if factory.vocabulary.canvas_length:
        raise SettingsError(
            "decisions: this model has no mask token, and so no masked answers; use another model"
        )
    encoder = _QuestionEncoder(factory, task.input)
    orders = [orders_of(question, own.rotations or 1) for question in questions]
    asked = [
        encoder.encode(index, wording(question, order))
        for index, question in enumerate(questions)
        for order in orders[index]
    ]
    attention = factory.config.decode.prompt_attention
    session = DecisionSession(
        encoder.input_ids,
        asked,
        factory.vocabulary,
        attention=attention,
        joint=own.prefix_for(attention) == "joint",
    )
    StepLimit(factory.config.model.max_num_batched_tokens).check(session.longest_lane)
    return PendingDecision(session, questions, orders, factory.decision_temperatures)


def _settings(
    factory: SessionFactory, settings: ChangedDecisions | None, changes: dict[str, Any]
) -> DecisionSettings:
    if not isinstance(settings, DecisionSettings | Mapping | None):
        raise SettingsError(
            f"got settings of type {type(settings).__name__}; give DecisionSettings, or a mapping or keywords with some"
        )
    if isinstance(settings, Mapping):
        changes, settings = {**settings, **changes}, None
    current = settings or factory.config.decisions
    return current.replace(**changes) if changes else current


class _QuestionEncoder:
    """The tokens of an input, and of one question after another."""

    def __init__(self, factory: SessionFactory, given: DecisionInput) -> None:
        tokenizer, vocabulary = require_tokenizer(factory.tokenizer), factory.vocabulary
        self._mask, self._eos = tokenizer.token_text(vocabulary.mask_token_id), vocabulary.eos_token_id
        self._room = factory.config.model.max_model_len
        messages = read_messages([{"role": "user", "content": given}] if isinstance(given, str) else given)
        for index, message in enumerate(messages):
            field = "input" if isinstance(given, str) else f"input[{index}].content"
            self._check_text(field, message["content"])
        self._encoded = EncodedInput(tokenizer, messages)
        self.input_ids = self._encoded.ids

    def encode(self, index: int, question: DecisionQuestion) -> QuestionTokens:
        """Raises PromptTooLongError, and PromptError for the mask token."""
        field = f"questions[{index}]"
        self._check_text(field, question.message)
        slot = AnswerSlot.of(list(map(self._encoded.label_ids, question.labels)), self._eos)
        tokens = QuestionTokens(self._encoded.question_ids(question.message), slot)
        if len(self.input_ids) + tokens.length > self._room:
            too_long = PromptTooLongError(
                f"{field}: an input of {len(self.input_ids)} tokens and a question with its answer of {tokens.length} "
                f"exceed max_model_len {self._room}; shorten them or raise max_model_len"
            )
            too_long.setting = field if tokens.length > len(self.input_ids) else "input"
            raise too_long
        return tokens

    def _check_text(self, field: str, text: str) -> None:
        if self._mask in text:
            what = f"got text with the mask token {self._mask}, which stands for an empty position; remove it"
            raise field_error(field, what)
