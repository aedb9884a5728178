"""Makes a session from an input and its questions, for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lopa_ray.config.decision_settings import DecisionSettings
from lopa_ray.decisions.encoded_input import DecisionInput, EncodedInput
from lopa_ray.decisions.pending import PendingDecision
from lopa_ray.decisions.questions import PredicateQuestion, Question, check_questions, orders_of, wording
from lopa_ray.decoding.decision_session import DecisionSession
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import SettingsError
from lopa_ray.scheduling.step_limit import StepLimit
from lopa_ray.text.tokenizer import require_tokenizer

AnyQuestion: TypeAlias = Question | str  # a question; a text is a predicate

ChangedDecisions: TypeAlias = DecisionSettings | Mapping[str, Any]
"""Settings of decisions: all of them, or by name the settings that differ from the configuration's."""


@dataclass(frozen=True, slots=True)
class DecisionTask:
    """An input and the questions about it."""

    input: DecisionInput
    questions: Sequence[AnyQuestion]


def new_decision(
    factory: SessionFactory, task: DecisionTask, settings: ChangedDecisions | None = None, **changes: Any
) -> PendingDecision:
    """The session of a task. `settings` and `changes` override the configuration's section `decisions`. Raises
    SettingsError for a model that fills no masks and for wrong settings, PromptTooLongError and PromptError, whose
    `setting` is the field, for an input or questions that cannot be computed."""
    own = _settings(factory, settings, changes)
    questions = [PredicateQuestion(one) if isinstance(one, str) else one for one in task.questions]
    check_questions(questions)
    if factory.vocabulary.canvas_length:
        what = "this model has no mask token, and so no masked answers; use another model"
        raise SettingsError(f"decisions: {what}")
    if factory.vocabulary.routing_block:
        what = "this model chooses experts for whole blocks, and questions begin anywhere; use another model"
        raise SettingsError(f"decisions: {what}")
    encoded = EncodedInput(require_tokenizer(factory.tokenizer), task.input, factory.vocabulary)
    orders = [orders_of(question, own.rotations or 1) for question in questions]
    model, attention = factory.config.model, factory.config.decode.prompt_attention
    asked = [
        encoded.question(f"questions[{index}]", wording(question, order), model.max_model_len)
        for index, question in enumerate(questions)
        for order in orders[index]
    ]
    joint = own.prefix_for(attention) == "joint"
    session = DecisionSession(encoded.ids, asked, factory.vocabulary, attention=attention, joint=joint)
    StepLimit(model.max_num_batched_tokens).check(session.longest_lane)
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
