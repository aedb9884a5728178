"""Builds what the Responses API sends: a response, or the events from which clients build it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from cluster.choices.messages import (
    ChoiceCanvas,
    ChoiceFinished,
    ChoicesOutput,
    ChoicesRequest,
    RequestAccepted,
    TextDelta,
    ToolCallDelta,
)
from cluster.openai.answer_builder import AnswerBuilder
from cluster.openai.completions.chat import chat_logprobs
from cluster.openai.errors import ApiError
from cluster.openai.events import ServerSentEvent
from cluster.openai.responses.items import EventFields, ResponsesItems
from cluster.openai.responses.objects import IncompleteDetails, ResponseFailure, ResponseObject, ResponseUsage
from cluster.openai.responses.request import ResponsesRequest

REPEATED = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "safety_identifier",
    "temperature",
    "top_p",
    "user",
)


class ResponsesBuilder(AnswerBuilder):
    """Builds one response."""

    def __init__(self, model: str, http_request: ResponsesRequest, request: ChoicesRequest) -> None:
        super().__init__(model, request)
        self._http_request = http_request
        self._created = int(time.time())
        self._items = ResponsesItems()
        self._num_events = 0

    def add(self, output: ChoicesOutput) -> None:
        """Add a choice's events. Without a stream all items come from its end."""
        super().add(output)
        if isinstance(output, ChoiceFinished) and not self.request.stream:
            for delta in _whole_answer(output):
                deque(self._items.add(delta, chat_logprobs(delta.logprobs)), maxlen=0)
            deque(self._items.close(complete=_is_complete(output)), maxlen=0)

    def _events(self, output: ChoicesOutput) -> Iterator[ServerSentEvent]:
        if isinstance(output, RequestAccepted):
            for name in ("response.created", "response.in_progress"):
                yield self._event(name, {"response": self._response("in_progress")})
        elif isinstance(output, TextDelta):
            yield from self._named(self._items.add(output, chat_logprobs(output.logprobs)))
        elif isinstance(output, ChoiceCanvas):
            yield self._event("response.lopa.canvas", {"canvas": asdict(output)})
        else:
            yield from self._named(self._items.close(complete=_is_complete(output)))

    def last_events(self) -> Iterator[ServerSentEvent]:
        self._check_finished()
        response = self._completion()
        yield self._event(f"response.{response['status']}", {"response": response})

    def error_events(self, error: ApiError) -> Iterator[ServerSentEvent]:
        yield self._event("error", {"code": error.code, "message": error.message, "param": error.param})
        failure = ResponseFailure(code=error.code, message=error.message)
        yield self._event("response.failed", {"response": self._response("failed", error=failure)})

    def _completion(self) -> dict[str, Any]:
        (finished,) = self._finished.values()
        if finished.finish_reason is None:
            return self._response("incomplete")
        if finished.finish_reason == "length":
            details = IncompleteDetails(reason="max_output_tokens")
            return self._response("incomplete", incomplete_details=details)
        return self._response("completed")

    def _named(self, events: Iterator[EventFields]) -> Iterator[ServerSentEvent]:
        for name, fields in events:
            yield self._event(name, fields)

    def _event(self, name: str, fields: Mapping[str, Any]) -> ServerSentEvent:
        number = self._num_events
        self._num_events += 1
        return ServerSentEvent({"type": name, "sequence_number": number, **fields}, name)

    def _response(self, status: Any, **changes: Any) -> dict[str, Any]:
        asked = self._http_request
        finished = bool(self._finished)
        fields: dict[str, Any] = {
            **asked.model_dump(include={*REPEATED}),
            "id": f"resp_{self.request.id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "metadata": asked.metadata or {},
            "model": self.model,
            "output": self._items.finished,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": asked.effort(), "summary": None},
            "service_tier": "default",
            "store": False,
            "text": asked.text.model_dump(by_alias=True, exclude_none=True)
            if asked.text and asked.text.format
            else {"format": {"type": "text"}},
            "tool_choice": asked.model_dump(include={"tool_choice"})["tool_choice"] or "auto",
            "tools": asked.own_functions(),
            "top_logprobs": asked.top_logprobs or 0,
            "truncation": "disabled",
            "usage": self._usage() if finished else None,
        }
        if finished:
            fields["lopa"] = self._request_cost()
        for answer in self._finished.values():
            if answer.trajectory is not None:
                fields["trajectory"] = answer.trajectory
        return ResponseObject(**fields | changes).to_dict()

    def _usage(self) -> ResponseUsage:
        reasoning = sum(finished.reasoning_tokens for finished in self._finished.values())
        return ResponseUsage.of(self.prompt_tokens, self.completion_tokens, reasoning=reasoning)


def _is_complete(finished: ChoiceFinished) -> bool:
    return finished.finish_reason in ("stop", "tool_calls")


def _whole_answer(finished: ChoiceFinished) -> Iterator[TextDelta]:
    """The parts of a finished choice, as a stream would have had them."""
    yield TextDelta(finished.choice, reasoning=finished.reasoning)
    yield TextDelta(finished.choice, finished.text, finished.logprobs)
    for index, call in enumerate(finished.tool_calls):
        delta = ToolCallDelta(index, call.name, call.arguments)
        yield TextDelta(finished.choice, tool_call=delta)
