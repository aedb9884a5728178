"""OpenAIWork: the request in one line of OpenAI's batch files, answered as a server would."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cluster.batch.decision_work import DECISION_URLS
from cluster.batch.lines import LineResult, OpenAILine, response_row
from cluster.choices.choice_factory import ChoiceFactory
from cluster.choices.messages import ChoicesRequest, RequestAccepted
from cluster.openai.answer_builder import AnswerBuilder
from cluster.openai.completions.chat import ChatBuilder, ChatRequest
from cluster.openai.completions.text import CompletionBuilder, CompletionRequest
from cluster.openai.errors import api_error, invalid_value
from cluster.openai.generation_request import GenerationRequest
from cluster.openai.responses.builder import ResponsesBuilder
from cluster.openai.responses.request import ResponsesRequest
from lopa_ray.engine.session_factory import SessionFactory
from lopa_ray.errors import RequestError
from lopa_ray.protocol.events import RequestStep

NewBuilder = Callable[[str, Any, ChoicesRequest], AnswerBuilder]

URLS: dict[str, tuple[type[GenerationRequest], NewBuilder]] = {
    "/v1/chat/completions": (ChatRequest, ChatBuilder),
    "/v1/completions": (CompletionRequest, CompletionBuilder),
    "/v1/fim/completions": (CompletionRequest, CompletionBuilder),
    "/v1/responses": (ResponsesRequest, ResponsesBuilder),
}


class OpenAIWork:
    """The choices of one request. Its `model` is repeated in the response, and not checked: a run has one model."""

    def __init__(self, line: OpenAILine, sessions: SessionFactory) -> None:
        """Raises ApiError and LopaError for a request that cannot be answered."""
        self.line = line
        request, new_builder = self._parse()
        choices_request = request.as_choices_request(f"batch-{line.line}")
        model = request.model or str(sessions.config.model.path)
        self._builder = new_builder(model, request, choices_request)
        try:
            factory = ChoiceFactory(sessions, draws_anew=False)
            self._choices = factory.create(choices_request, time.monotonic())
        except RequestError as error:
            raise api_error(error, request.setting_fields()) from None
        tokens = tuple(choice.prompt_tokens for choice in self._choices[:: choices_request.n])
        max_new_tokens = self._choices[0].session.settings.max_new_tokens
        self._builder.add(RequestAccepted(tokens, max_new_tokens))
        self.sessions = [choice.session for choice in self._choices]
        self._steps = 0
        for choice in self._choices:
            for output in choice.start():
                self._builder.add(output)

    def _parse(self) -> tuple[GenerationRequest, NewBuilder]:
        if self.line.url not in URLS:
            allowed = ", ".join((*URLS, *DECISION_URLS))
            raise invalid_value("url", f"got {self.line.url!r}; allowed: {allowed}")
        request_class, new_builder = URLS[self.line.url]
        request = request_class.parse(self.line.body)
        if request.stream:
            raise invalid_value("stream", "got true; a file has complete responses only: leave it out")
        if request.lopa is not None and request.lopa.deadline is not None:
            raise invalid_value("lopa.deadline", "has no meaning in a file; leave it out")
        return request, new_builder

    def add_step(self, index: int, event: RequestStep) -> None:
        choice = self._choices[index]
        self._steps += 1
        if not choice.finished:  # a stop text may have ended it, while its session goes on
            for output in choice.add_step(event):
                self._builder.add(output)

    def result(self, began: float) -> LineResult:
        row = response_row(self.line, 200, self._builder.completion())
        return LineResult(self.line.line, row, tokens=self._builder.completion_tokens, steps=self._steps)
