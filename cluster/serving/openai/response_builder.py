"""Turns the outputs of a request into OpenAI's objects, all at once or as they come. No I/O."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from cluster.serving.engine_messages import (
    CanvasSnapshot,
    ChoiceFinished,
    ChoiceStats,
    EngineOutput,
    EngineRequest,
    RequestAccepted,
    TextDelta,
)
from cluster.serving.openai.errors import ApiError
from cluster.serving.openai.response_models import (
    Canvas,
    CanvasBranch,
    CanvasCell,
    CanvasNote,
    ChoiceCost,
    RequestCost,
    ResponseModel,
    Trace,
    Usage,
)
from lopa_ray import __version__

MIN_LOGPROB = -9999.0
"""OpenAI's log-probability of what is as good as impossible; JSON has no infinity."""


class ResponseBuilder(ABC):
    """Builds the completion, or the chunks, of one request. It takes every output, in order."""

    id_prefix: str
    """Of completion ids."""

    def __init__(self, model: str, request: EngineRequest, *, include_usage: bool) -> None:
        self.model, self.request = model, request
        self.prompt_tokens = 0
        self._include_usage = include_usage
        self._finished: dict[int, ChoiceFinished] = {}
        self._envelope = {
            "id": f"{self.id_prefix}-{request.id}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"lopa-ray-{__version__}",
        }

    @property
    def completion_tokens(self) -> int:
        """Tokens of the choices that have ended."""
        return sum(finished.stats.tokens for finished in self._finished.values())

    def add(self, output: EngineOutput) -> None:
        """Store what the completion needs of an output."""
        if isinstance(output, RequestAccepted):
            self.prompt_tokens = sum(output.prompt_tokens)
        elif isinstance(output, ChoiceFinished):
            self._finished[output.choice] = output

    def chunks(self, output: EngineOutput) -> Iterator[dict[str, Any]]:
        """Add an output; returns its chunks.

        A canvas snapshot is a chunk without choices, as the one with the usage is: clients of
        OpenAI's streams know those, and events of another kind would break them.
        """
        self.add(output)
        if isinstance(output, RequestAccepted):
            for index in range(self._num_choices):
                yield from self._choice_chunks(self.start_chunk_choice(index))
        elif isinstance(output, TextDelta):
            yield from self._choice_chunks(self.delta_chunk_choice(output))
        elif isinstance(output, CanvasSnapshot):
            yield self._chunk([], lopa=CanvasNote(canvas=_canvas(output)))
        elif output.finish_reason is not None:
            yield from self._choice_chunks(self.finish_chunk_choice(output, choice_cost(output.stats)))

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """The chunks behind those of the choices. Raises ApiError (504) if a choice ran into its deadline."""
        self._check_finished()
        if self._include_usage or self.request.trace:
            usage = {"usage": self._usage()} if self._include_usage else {}
            yield self._chunk([], **usage, lopa=self._request_cost())

    def completion(self) -> dict[str, Any]:
        """The whole response. Raises ApiError (504) if a choice ran into its deadline."""
        self._check_finished()
        return self._completion()

    @abstractmethod
    def start_chunk_choice(self, index: int) -> ResponseModel | None:
        """A choice's first entry in a chunk, if it has one before its text."""

    @abstractmethod
    def delta_chunk_choice(self, delta: TextDelta) -> ResponseModel:
        """A choice's entry in a chunk that adds text."""

    @abstractmethod
    def finish_chunk_choice(self, finished: ChoiceFinished, cost: ChoiceCost) -> ResponseModel:
        """A choice's last entry in a chunk."""

    @abstractmethod
    def completion_choice(self, finished: ChoiceFinished, cost: ChoiceCost) -> ResponseModel:
        """A whole choice, as a completion has it."""

    @abstractmethod
    def chunk_object(self, **fields: Any) -> ResponseModel:
        """A chunk with these fields."""

    @abstractmethod
    def completion_object(self, **fields: Any) -> ResponseModel:
        """A completion with these fields."""

    @property
    def _num_choices(self) -> int:
        return len(self.request.prompts) * self.request.n

    def _check_finished(self) -> None:
        count = self._num_choices
        if sorted(self._finished) != list(range(count)):
            raise RuntimeError(
                f"request {self.request.id}: {len(self._finished)} of {count} choices have ended"
            )
        unfinished = sum(finished.finish_reason is None for finished in self._finished.values())
        if unfinished:
            message = (
                f"{unfinished} of {count} choices were not finished by the deadline; partial has what was "
                "decided so far: allow more time (lopa.deadline), or ask for fewer tokens"
            )
            # OpenAI's client repeats every 5xx unless it is told not to.
            headers = {"X-Should-Retry": "false"}
            raise ApiError(504, message, "deadline_exceeded", headers=headers, partial=self._completion())

    def _completion(self) -> dict[str, Any]:
        choices = [
            self.completion_choice(finished, choice_cost(finished.stats))
            for _, finished in sorted(self._finished.items())
        ]
        return self.completion_object(
            **self._envelope, choices=choices, usage=self._usage(), lopa=self._request_cost()
        ).to_dict()

    def _choice_chunks(self, choice: ResponseModel | None) -> Iterator[dict[str, Any]]:
        if choice is not None:
            yield self._chunk([choice])

    def _chunk(self, choices: Sequence[ResponseModel], **fields: Any) -> dict[str, Any]:
        usage = {"usage": None} if self._include_usage else {}
        return self.chunk_object(**{**self._envelope, "choices": choices, **usage, **fields}).to_dict()

    def _usage(self) -> Usage:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)

    def _request_cost(self) -> RequestCost:
        all_stats = [finished.stats for finished in self._finished.values()]
        steps, tokens = sum(stats.steps for stats in all_stats), sum(stats.tokens for stats in all_stats)
        phases = dict.fromkeys((name for stats in all_stats for name in stats.phases_seconds), 0.0)
        for stats in all_stats:
            for name, seconds in stats.phases_seconds.items():
                phases[name] += seconds
        events = [dict(event) for _, finished in sorted(self._finished.items()) for event in finished.trace]
        return RequestCost(
            steps=steps,
            forwards=sum(stats.forwards for stats in all_stats),
            tokens=tokens,
            tpf=tokens / steps if steps else 0.0,
            seconds=max(stats.seconds for stats in all_stats),
            queued_seconds=max(stats.queued_seconds for stats in all_stats),
            phases_seconds=phases,
            commit_bytes=sum(stats.commit_bytes for stats in all_stats),
            **({"trace": Trace(traceEvents=events)} if self.request.trace else {}),
        )


def choice_cost(stats: ChoiceStats) -> ChoiceCost:
    """What one choice cost."""
    return ChoiceCost(**asdict(stats), tpf=stats.tpf)


def clamp_logprob(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return max(logprob, MIN_LOGPROB)


def _canvas(snapshot: CanvasSnapshot) -> Canvas:
    return Canvas(
        choice=snapshot.choice,
        step=snapshot.step,
        seconds=snapshot.seconds,
        cells=[CanvasCell(t=cell.text, s=cell.step) for cell in snapshot.cells],
        branches=[
            CanvasBranch(
                name=branch.name,
                tried=branch.tried,
                confidence=branch.confidence if math.isfinite(branch.confidence) else None,
            )
            for branch in snapshot.branches
        ],
        winner=snapshot.winner,
    )
