"""Turns the outputs of a request into OpenAI's objects, all at once or as events of a stream. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar

from cluster.choices.messages import ChoiceFinished, ChoicesOutput, ChoicesRequest, RequestAccepted, TextDelta
from cluster.openai.completion_objects import RequestCost, Trace
from cluster.openai.errors import ApiError
from cluster.openai.events import ServerSentEvent

MIN_LOGPROB = -9999.0  # OpenAI's log-probability for a probability of almost 0; JSON has no infinity


class AnswerBuilder(ABC):
    """Builds the response, or the events, of one request. It takes every output, in order."""

    end_of_stream: ClassVar[ServerSentEvent | None] = None  # also where an error ended it

    def __init__(self, model: str, request: ChoicesRequest) -> None:
        self.model, self.request = model, request
        self.prompt_tokens = 0
        self._tokens: dict[int, int] = {}  # tokens of each choice so far
        self._finished: dict[int, ChoiceFinished] = {}

    @property
    def completion_tokens(self) -> int:
        return sum(self._tokens.values())

    def add(self, output: ChoicesOutput) -> None:
        if isinstance(output, RequestAccepted):
            self.prompt_tokens = sum(output.prompt_tokens)
        elif isinstance(output, TextDelta):
            self._tokens[output.choice] = output.tokens
        elif isinstance(output, ChoiceFinished):
            self._finished[output.choice] = output
            self._tokens[output.choice] = output.stats.tokens

    def completion(self) -> dict[str, Any]:
        """The whole response. Raises ApiError (504) if a choice ran into its deadline."""
        self._check_finished()
        return self._completion()

    def events(self, output: ChoicesOutput) -> Iterator[ServerSentEvent]:
        self.add(output)
        yield from self._events(output)

    @abstractmethod
    def last_events(self) -> Iterator[ServerSentEvent]:
        """The events after the last output. Raises ApiError (504) if a choice ran into its deadline."""

    @abstractmethod
    def error_events(self, error: ApiError) -> Iterator[ServerSentEvent]: ...

    @abstractmethod
    def _events(self, output: ChoicesOutput) -> Iterator[ServerSentEvent]: ...

    @abstractmethod
    def _completion(self) -> dict[str, Any]:
        """The response, with what was decided so far."""

    @property
    def _num_choices(self) -> int:
        return len(self.request.prompts) * self.request.n

    def _check_finished(self) -> None:
        count = self._num_choices
        if sorted(self._finished) != list(range(count)):
            raise RuntimeError(f"{len(self._finished)} of {count} choices have ended")
        unfinished = sum(finished.finish_reason is None for finished in self._finished.values())
        if unfinished:
            message = (
                f"{unfinished} of {count} choices were not finished by the deadline; partial has what was "
                "decided so far: allow more time (lopa.deadline), or ask for fewer tokens"
            )
            # OpenAI's client repeats every request that ends with a 5xx unless this header says not to.
            headers = {"X-Should-Retry": "false"}
            raise ApiError(504, message, "deadline_exceeded", headers=headers, partial=self._completion())

    def _request_cost(self) -> RequestCost:
        costs = [finished.stats for finished in self._finished.values()]
        sums = ("steps", "forwards", "rule_steps", "tokens", "commit_bytes")
        total = {name: sum(getattr(cost, name) for cost in costs) for name in sums}
        phases: dict[str, float] = {}
        for phase, seconds in chain.from_iterable(cost.phases_seconds.items() for cost in costs):
            phases[phase] = phases.get(phase, 0.0) + seconds
        events = [dict(event) for _, finished in sorted(self._finished.items()) for event in finished.trace]
        return RequestCost(
            **total,
            tpf=total["tokens"] / total["steps"] if total["steps"] else 0.0,
            seconds=max(cost.seconds for cost in costs),
            queued_seconds=max(cost.queued_seconds for cost in costs),
            phases_seconds=phases,
            **({"trace": Trace(traceEvents=events)} if self.request.trace else {}),
        )


def clamp_logprob(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
