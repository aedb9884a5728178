"""DecisionWork: the questions in one line of a file, of this project's format or OpenAI's batch files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from cluster.batch.lines import CompletedLine, DecisionLine, LineResult, OpenAILine, identity
from cluster.batch.response_row import response_row
from cluster.choices.decision_message import DecisionMessage
from cluster.openai.decision_objects import DecisionObject, decision_object
from cluster.openai.decisions import DecisionsRequest
from cluster.openai.errors import ApiError, decision_error, invalid_value
from cluster.openai.response_model import ResponseModel
from cluster.typesafe.system_one import SystemOneRequest
from cluster.typesafe.system_one_answers import system_one_response
from lopa_ray.decisions.answers import DecisionResult
from lopa_ray.engine.decision_factory import DecisionTask, new_decision
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import RequestError
from lopa_ray.protocol.events import RequestStep


@dataclass(frozen=True, slots=True)
class ParsedDecision:
    """What a body asks, and how its path answers."""

    message: DecisionMessage
    respond: Callable[[DecisionResult], ResponseModel]
    as_error: Callable[[ApiError], ApiError]
    """What the path makes of an error about the request."""


def _openai(body: dict[str, Any], default_model: str) -> ParsedDecision:
    request = DecisionsRequest.parse(body)
    respond = partial(decision_object, request.model or default_model)
    return ParsedDecision(request.as_message("", ""), respond, lambda error: error)


def _typesafe(body: dict[str, Any], default_model: str) -> ParsedDecision:
    request = SystemOneRequest.parse({"model": default_model, **body})
    respond = partial(system_one_response, request.model, request)
    return ParsedDecision(request.as_message("", ""), respond, request.unprocessable)


DECISION_URLS: Mapping[str, Callable[[dict[str, Any], str], ParsedDecision]] = {
    "/v1/decisions": _openai,
    "/v1/systemone": _typesafe,
}
"""Path of the server → how a body is read, with the name of the model where the body has none."""


class DecisionWork:
    """The request of one line. Its `model` is repeated in the response, and not checked: a run has one model."""

    def __init__(self, line: OpenAILine | DecisionLine, sessions: SessionFactory) -> None:
        """Raises ApiError and LopaError for questions that cannot be answered."""
        self.line = line
        parse = DECISION_URLS[line.url if isinstance(line, OpenAILine) else "/v1/decisions"]
        parsed = parse(line.body, str(sessions.config.model.path))
        self._respond, message = parsed.respond, parsed.message
        if message.deadline_s is not None:
            raise invalid_value("lopa.deadline", "has no meaning in a file; leave it out")
        settings = message.settings if isinstance(line, OpenAILine) else line.settings or {}
        try:
            self._decision = new_decision(sessions, DecisionTask(message.input, message.questions), settings)
        except RequestError as error:
            if not isinstance(line, OpenAILine):
                raise
            raise parsed.as_error(decision_error(error)) from None
        self.sessions = (self._decision.session,)

    def add_step(self, index: int, event: RequestStep) -> None:
        """Take in a step."""
        self._decision.add(event)

    def result(self, began: float) -> LineResult:
        """The line's result, when its session has ended."""
        result, line = self._decision.result(), self.line
        response = self._respond(result)
        if isinstance(line, OpenAILine):
            row = response_row(line, 200, response.to_dict())
        else:
            assert isinstance(response, DecisionObject)
            row = {**identity(line.line, line.id), **decision_row(response)}
        return CompletedLine(line.line, row, result.output_tokens, result.steps)


def decision_row(response: DecisionObject) -> dict[str, Any]:
    """A result as plain values, for this project's own formats."""
    values = response.to_dict()
    return {"answers": values["answers"], "usage": values["usage"], **values["lopa"]}
