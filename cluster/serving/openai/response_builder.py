"""Turns a job's messages into OpenAI's objects, all at once or as they come. No I/O."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from cluster.serving.messages import Accepted, CanvasSnapshot, Finished, Job, Message, Piece, RequestStats
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

NEVER = -9999.0
"""OpenAI's log-probability of what is as good as impossible; JSON has no infinity."""


class Reply(ABC):
    """One request's answer. Feed it every message, in order."""

    prefix: str
    """Of completion ids."""

    def __init__(self, model: str, job: Job, *, include_usage: bool) -> None:
        self.model, self.job = model, job
        self.prompt_tokens = 0
        self._include_usage = include_usage
        self._finished: dict[int, Finished] = {}
        self._envelope = {
            "id": f"{self.prefix}-{job.id}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"lopa-ray-{__version__}",
        }

    @property
    def completion_tokens(self) -> int:
        """Tokens of the choices that have ended."""
        return sum(finished.figures.tokens for finished in self._finished.values())

    def add(self, message: Message) -> None:
        """Take note of what the whole answer needs."""
        if isinstance(message, Accepted):
            self.prompt_tokens = sum(message.prompt_tokens)
        elif isinstance(message, Finished):
            self._finished[message.choice] = message

    def events(self, message: Message) -> Iterator[dict[str, Any]]:
        """Take note, and tell it as events of a stream.

        A picture of the canvas is a chunk without choices, as the one with the usage is: clients
        of OpenAI's streams know those, and events of another kind would break them.
        """
        self.add(message)
        if isinstance(message, Accepted):
            for index in range(len(self.job.prompts) * self.job.n):
                yield from self._chunks(self.opening(index))
        elif isinstance(message, Piece):
            yield from self._chunks(self.growth(message))
        elif isinstance(message, CanvasSnapshot):
            yield self._chunk([], lopa=CanvasNote(canvas=_canvas(message)))
        elif message.finish_reason is not None:
            yield from self._chunks(self.closing(message, choice_cost(message.figures)))

    def end(self) -> Iterator[dict[str, Any]]:
        """The last events of a stream. Raises ApiError (504) if a choice ran into its deadline."""
        self._check_finished()
        if self._include_usage or self.job.trace:
            usage = {"usage": self._usage()} if self._include_usage else {}
            yield self._chunk([], **usage, lopa=self._cost())

    def whole(self) -> dict[str, Any]:
        """The answer. Raises ApiError (504) if a choice ran into its deadline."""
        self._check_finished()
        return self._completion()

    @abstractmethod
    def opening(self, index: int) -> ResponseModel | None:
        """A choice's first chunk, if it has one before its text."""

    @abstractmethod
    def growth(self, piece: Piece) -> ResponseModel:
        """What a piece adds to its choice."""

    @abstractmethod
    def closing(self, finished: Finished, cost: ChoiceCost) -> ResponseModel:
        """A choice's last chunk."""

    @abstractmethod
    def choice(self, finished: Finished, cost: ChoiceCost) -> ResponseModel:
        """A whole choice."""

    @abstractmethod
    def chunk(self, **fields: Any) -> ResponseModel:
        """An event."""

    @abstractmethod
    def completion(self, **fields: Any) -> ResponseModel:
        """The answer."""

    def _check_finished(self) -> None:
        count = len(self.job.prompts) * self.job.n
        if sorted(self._finished) != list(range(count)):
            raise RuntimeError(f"request {self.job.id}: {len(self._finished)} of {count} choices have ended")
        cut = [index for index, finished in self._finished.items() if finished.finish_reason is None]
        if cut:
            message = (
                f"{len(cut)} of {count} choices were not finished by the deadline; partial has what was "
                "decided so far: allow more time (lopa.deadline), or ask for fewer tokens"
            )
            # OpenAI's client repeats every 5xx unless it is told not to.
            headers = {"X-Should-Retry": "false"}
            raise ApiError(504, message, "deadline_exceeded", headers=headers, partial=self._completion())

    def _completion(self) -> dict[str, Any]:
        choices = [
            self.choice(finished, choice_cost(finished.figures))
            for _, finished in sorted(self._finished.items())
        ]
        return self.completion(
            **self._envelope, choices=choices, usage=self._usage(), lopa=self._cost()
        ).plain()

    def _chunks(self, choice: ResponseModel | None) -> Iterator[dict[str, Any]]:
        if choice is not None:
            yield self._chunk([choice])

    def _chunk(self, choices: Sequence[ResponseModel], **fields: Any) -> dict[str, Any]:
        usage = {"usage": None} if self._include_usage else {}
        return self.chunk(**{**self._envelope, "choices": choices, **usage, **fields}).plain()

    def _usage(self) -> Usage:
        prompt, completion = self.prompt_tokens, self.completion_tokens
        return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)

    def _cost(self) -> RequestCost:
        every = [finished.figures for finished in self._finished.values()]
        steps, tokens = sum(f.steps for f in every), sum(f.tokens for f in every)
        phases = dict.fromkeys((name for f in every for name in f.phases_s), 0.0)
        for figures in every:
            for name, seconds in figures.phases_s.items():
                phases[name] += seconds
        traced = [dict(event) for _, f in sorted(self._finished.items()) for event in f.trace]
        return RequestCost(
            steps=steps,
            forwards=sum(f.forwards for f in every),
            tokens=tokens,
            tpf=tokens / steps if steps else 0.0,
            seconds=max(f.seconds for f in every),
            queued_seconds=max(f.queued_s for f in every),
            phases_seconds=phases,
            commit_bytes=sum(f.commit_bytes for f in every),
            **({"trace": Trace(traceEvents=traced)} if self.job.trace else {}),
        )


def choice_cost(figures: RequestStats) -> ChoiceCost:
    """What one choice cost."""
    return ChoiceCost(
        steps=figures.steps,
        forwards=figures.forwards,
        tokens=figures.tokens,
        tpf=figures.tpf,
        seconds=figures.seconds,
        queued_seconds=figures.queued_s,
        phases_seconds=dict(figures.phases_s),
        commit_bytes=figures.commit_bytes,
        seed=figures.seed,
    )


def finite(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return max(logprob, NEVER)


def _canvas(picture: CanvasSnapshot) -> Canvas:
    return Canvas(
        choice=picture.choice,
        step=picture.step,
        seconds=picture.seconds,
        cells=[CanvasCell(t=cell.text, s=cell.step) for cell in picture.cells],
        branches=[
            CanvasBranch(
                name=racer.name,
                tried=racer.tried,
                confidence=racer.confidence if math.isfinite(racer.confidence) else None,
            )
            for racer in picture.racers
        ],
        winner=picture.winner,
    )
