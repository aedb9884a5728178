"""DecisionWork: the questions in one line of a file, of this project's format or OpenAI's batch files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.batch.lines import DecisionLine, LineResult, OpenAILine, identity, response_row
from cluster.openai.decisions.objects import DecisionObject
from cluster.openai.decisions.request import DecisionRequest, DecisionsRequest
from cluster.openai.errors import decision_error, invalid_value
from cluster.typesafe.system_one import SystemOneRequest
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.engine.decision_factory import DecisionTask, new_decision
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import RequestError
from lopa_ray.protocol.events import RequestStep

DECISION_URLS: Mapping[str, type[DecisionRequest]] = {
    "/v1/decisions": DecisionsRequest,
    "/v1/systemone": SystemOneRequest,
}


class DecisionWork:
    """The request of one line. Its `model` is repeated in the response, and not checked: a run has one model."""

    def __init__(self, line: OpenAILine | DecisionLine, sessions: SessionFactory) -> None:
        """Raises ApiError and LopaError for questions that cannot be answered."""
        self.line = line
        default_model = str(sessions.config.model.path)
        request_class = DECISION_URLS[line.url if isinstance(line, OpenAILine) else "/v1/decisions"]
        self._request = request = request_class.parse({"model": default_model, **line.body})
        self._model = request.model or default_model
        message = request.as_message("", "")
        if message.deadline_s is not None:
            raise invalid_value("lopa.deadline", "has no meaning in a file; leave it out")
        settings = message.settings if isinstance(line, OpenAILine) else line.settings or {}
        try:
            self._decision = new_decision(sessions, DecisionTask(message.input, message.questions), settings)
        except RequestError as error:
            if not isinstance(line, OpenAILine):
                raise
            raise request.as_error(decision_error(error)) from None
        self.sessions: Sequence[RequestSession] = (self._decision.session,)

    def add_step(self, index: int, event: RequestStep) -> None:
        self._decision.add(event)

    def result(self, began: float) -> LineResult:
        result, line = self._decision.result(), self.line
        response = self._request.respond(self._model, result)
        if isinstance(line, OpenAILine):
            row = response_row(line, 200, response.to_dict())
        else:
            assert isinstance(response, DecisionObject)
            row = {**identity(line.line, line.id), **decision_row(response)}
        return LineResult(line.line, row, tokens=result.output_tokens, steps=result.steps)


def decision_row(response: DecisionObject) -> dict[str, Any]:
    """A result as plain values, for this project's own formats."""
    values = response.to_dict()
    return {"answers": values["answers"], "usage": values["usage"], **values["lopa"]}
