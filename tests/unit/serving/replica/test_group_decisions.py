"""Decisions of a decode group: what it answers, deadlines, and how its metrics count them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
import torch

from cluster.choices.decision_message import DecisionMessage
from cluster.serving.replica.group_server import GroupServer
from lopa_ray import AsyncEngine, DecisionResult, LocalEngine, PredicateQuestion
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.errors import DeadlineError, PromptError, WorkerLostError
from lopa_ray.protocol.events import RequestEvent, RequestFailure

torch.set_num_threads(1)

QUESTIONS = (PredicateQuestion("Is it so?"), PredicateQuestion("Or not?"))


class OverLocal(AsyncEngine):
    """An asynchronous engine over one in this process; it keeps the sessions that it gets."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine.config, engine.vocabulary, engine.tokenizer)
        self._engine = engine
        self.sessions: list[RequestSession] = []
        self.failure: Exception | None = None
        self.hangs = False

    async def events(self, sessions: Sequence[RequestSession]) -> AsyncGenerator[RequestEvent, None]:
        self.sessions += sessions
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            yield RequestFailure(0, self.failure)
            return
        for event in self._engine.events(sessions):
            yield event


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return LocalEngine.from_pretrained("demo", max_model_len=256)


@pytest.fixture
def group(engine: LocalEngine) -> GroupServer:
    server = GroupServer("demo", {"model": {"path": "demo"}})
    server._engine = OverLocal(engine)  # type: ignore[assignment]
    return server


def decide(group: GroupServer, **fields: Any) -> DecisionResult:
    message = DecisionMessage(**{"id": "1", "input": "Tom has 6 pens.", "questions": QUESTIONS, **fields})

    async def run() -> DecisionResult:
        (result,) = [result async for result in group.decide(message)]
        return result

    return asyncio.run(run())


def test_a_decision_is_counted(engine: LocalEngine, group: GroupServer) -> None:
    result = decide(group, settings={"prefix": "joint"}, client="key 1", priority=3)
    assert result.answers == engine.decide("Tom has 6 pens.", QUESTIONS, prefix="joint").answers
    (session,) = group._engine.sessions  # type: ignore[union-attr]
    assert (session.client, session.priority) == ("key 1", 3)
    text = group.metrics_text()
    assert 'lopa_decision_questions_total{model="demo"} 2.0' in text
    assert 'lopa_requests_total{model="demo",outcome="finished"} 1.0' in text


@pytest.mark.parametrize(
    ("fields", "error", "outcome"),
    [
        ({"questions": (PredicateQuestion("<|mask|>"),)}, PromptError, "refused"),
        ({"deadline_s": 0.05}, DeadlineError, "deadline"),
        ({}, WorkerLostError, "error"),
    ],
)
def test_what_goes_wrong_is_counted(
    group: GroupServer, fields: Any, error: type[Exception], outcome: str
) -> None:
    over: Any = group._engine
    over.hangs, over.failure = error is DeadlineError, WorkerLostError("lost")
    with pytest.raises(error):
        decide(group, **fields)
    assert f'lopa_requests_total{{model="demo",outcome="{outcome}"}} 1.0' in group.metrics_text()
    assert not group._requests
