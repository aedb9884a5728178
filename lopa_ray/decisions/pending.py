"""PendingDecision: a session of an input's questions, and what its steps have reported."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice

from lopa_ray.config.decision_settings import DecisionType
from lopa_ray.decisions.answers import DecisionResult, answer, type_of
from lopa_ray.decisions.questions import Question
from lopa_ray.decoding.decision_session import DecisionSession
from lopa_ray.protocol.events import RequestEvent, RequestFailure


class PendingDecision:
    """Collects the steps of a session, and makes the result of them. The client of an engine has it."""

    def __init__(
        self,
        session: DecisionSession,
        questions: Sequence[Question],
        orders: Sequence[Sequence[tuple[int, ...]]],
        temperatures: Mapping[DecisionType, float],
    ) -> None:
        """`orders`: for each question the orders of its values, each of which is a question of the session."""
        self.session, self._questions, self._orders = session, questions, orders
        self._temperatures = temperatures
        self._began = time.perf_counter()
        self._logprobs: list[tuple[float, ...]] = []
        self._steps = self._forwards = self._cached = self._saved = 0

    def add(self, event: RequestEvent) -> None:
        """Take in an event. Raises the error of a failure."""
        if isinstance(event, RequestFailure):
            raise event.error
        self._logprobs += event.outcome.candidate_logprobs
        self._steps += 1
        self._forwards += len(event.plan.branches)
        self._cached += event.cached_positions
        self._saved += event.saved_positions

    def result(self) -> DecisionResult:
        session, log_likelihoods = self.session, self._log_likelihoods()
        pairs = zip(self._questions, log_likelihoods, strict=True)
        return DecisionResult(
            answers=tuple(
                answer(question, orders, self._temperatures.get(type_of(question), 1.0))
                for question, orders in pairs
            ),
            log_likelihoods=log_likelihoods,
            input_tokens=len(session.prompt) + sum(len(question.asked) for question in session.questions),
            cached_tokens=self._cached,
            saved_tokens=self._saved,
            output_tokens=sum(question.slot_length for question in session.questions),
            steps=self._steps,
            forwards=self._forwards,
            seconds=time.perf_counter() - self._began,
        )

    def _log_likelihoods(self) -> tuple[tuple[tuple[float, ...], ...], ...]:
        asked, logprobs = iter(self.session.questions), iter(self._logprobs)

        def of_order(order: tuple[int, ...]) -> tuple[float, ...]:
            question = next(asked)
            listed = question.log_likelihoods(list(islice(logprobs, len(question.candidates_by_prefix))))
            by_value = dict(zip(order, listed, strict=True))
            return tuple(by_value[index] for index in range(len(order)))

        return tuple(tuple(map(of_order, orders)) for orders in self._orders)
