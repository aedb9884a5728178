"""Chat and text completions: what their responses, and the chunks of their streams, have in common."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from cluster.choices.messages import (
    ChoiceCanvas,
    ChoiceFinished,
    ChoicesOutput,
    ChoicesRequest,
    RequestAccepted,
    TextDelta,
)
from cluster.openai.answer_builder import AnswerBuilder
from cluster.openai.completion_objects import CanvasNote, Usage
from cluster.openai.completions.request import MultiChoiceRequest
from cluster.openai.errors import ApiError
from cluster.openai.events import ServerSentEvent
from cluster.openai.response_model import ResponseModel
from lopa_ray import __version__


class MultiChoiceBuilder(AnswerBuilder):
    end_of_stream: ClassVar[ServerSentEvent] = ServerSentEvent("[DONE]")

    id_prefix: ClassVar[str]
    new_completion: ClassVar[Callable[..., ResponseModel]]
    new_chunk: ClassVar[Callable[..., ResponseModel]]

    def __init__(self, model: str, http_request: MultiChoiceRequest, request: ChoicesRequest) -> None:
        super().__init__(model, request)
        options = http_request.stream_options
        self._include_usage = options is not None and bool(options.include_usage)
        self._continuous_usage = options is not None and bool(options.continuous_usage_stats)
        self._envelope = {
            "id": f"{self.id_prefix}-{request.id}",
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": f"lopa-ray-{__version__}",
        }

    def _events(self, output: ChoicesOutput) -> Iterator[ServerSentEvent]:
        """A canvas is a chunk without choices, as the usage is: events of another kind would break clients."""
        choices: list[ResponseModel | None] = []
        if isinstance(output, RequestAccepted):
            choices = [self.start_chunk_choice(index) for index in range(self._num_choices)]
        elif isinstance(output, TextDelta):
            choices = [self.delta_chunk_choice(output)]
        elif isinstance(output, ChoiceCanvas):
            yield self._chunk([], lopa=CanvasNote(canvas=output))
        elif output.finish_reason is not None:
            choices = [self.finish_chunk_choice(output)]
        for choice in choices:
            if choice is not None:
                yield self._chunk([choice])

    def last_events(self) -> Iterator[ServerSentEvent]:
        self._check_finished()
        if self._include_usage or self.request.trace:
            usage = {"usage": self._usage()} if self._include_usage else {}
            yield self._chunk([], **usage, lopa=self._request_cost())

    def error_events(self, error: ApiError) -> Iterator[ServerSentEvent]:
        yield ServerSentEvent(error.body)

    @staticmethod
    def end_of_choice(finished: ChoiceFinished) -> dict[str, Any]:
        """The fields that come with a choice's end."""
        asked = {} if finished.trajectory is None else {"trajectory": finished.trajectory}
        return {"finish_reason": finished.finish_reason, "lopa": finished.stats, **asked}

    def start_chunk_choice(self, index: int) -> ResponseModel | None:
        """A choice's first entry in a chunk, if it has one before its text."""
        return None

    @abstractmethod
    def delta_chunk_choice(self, delta: TextDelta) -> ResponseModel | None:
        """A choice's entry in a chunk that adds something, if that is sent."""

    @abstractmethod
    def finish_chunk_choice(self, finished: ChoiceFinished) -> ResponseModel:
        """A choice's last entry in a chunk."""

    @abstractmethod
    def completion_choice(self, finished: ChoiceFinished) -> ResponseModel:
        """A whole choice, as a completion has it."""

    def _completion(self) -> dict[str, Any]:
        choices = [self.completion_choice(finished) for _, finished in sorted(self._finished.items())]
        costs = {"usage": self._usage(), "lopa": self._request_cost()}
        return self.new_completion(**self._envelope, choices=choices, **costs).to_dict()

    def _chunk(self, choices: Sequence[ResponseModel], **fields: Any) -> ServerSentEvent:
        usage: dict[str, Any] = {}
        if self._include_usage:
            usage = {"usage": self._usage() if choices and self._continuous_usage else None}
        chunk = self.new_chunk(**{**self._envelope, "choices": choices, **usage, **fields})
        return ServerSentEvent(chunk.to_dict())

    def _usage(self) -> Usage:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
