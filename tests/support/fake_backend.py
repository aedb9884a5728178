"""A backend that is none, and a server around an application, for tests of the HTTP layer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from cluster.serving.http.app import create_app
from cluster.serving.messages import (
    Accepted,
    Backend,
    BranchView,
    CanvasSnapshot,
    Cell,
    Finished,
    GroupStatus,
    GroupWorkers,
    Job,
    Message,
    Piece,
    RequestStats,
    TokenLogprob,
)
from cluster.serving.openai.response_models import ErrorObject
from cluster.serving.settings import HttpSettings
from lopa_ray.errors import PromptTooLongError, RequestCancelledError, SettingsError

MODEL, OTHER_MODEL = "fake", "team/fake-2"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI: list[Any] = [{"role": "user", "content": "hi"}]
WORDS = ("Once", " upon", " a", " time", " — «", "ünïcode", "»", "\u2028", "🙂", " end.")
ROOM = 2048
ROOM_FOR_WORKERS = 8


@dataclass
class FakeBackend:
    """Answers every prompt with the same words, one token each, `step_s` seconds apart.

    Faults are put in by hand: `refuse` is raised before Accepted, `fail` after `fail_after` words;
    `hold` makes it wait for ever behind Accepted, `cut` is a deadline that comes after so many words.
    """

    models: tuple[str, ...] = (MODEL, OTHER_MODEL)
    step_s: float = 0.0
    refuse: Exception | None = None
    fail: Exception | None = None
    fail_after: int = 2
    hold: bool = False
    hold_before: bool = False
    cut: int | None = None
    unwell: Exception | None = None
    jobs: list[tuple[str, Job]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    closed: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)

    def reset(self) -> None:
        """As it was when it was made."""
        vars(self).update(vars(FakeBackend()))

    async def run(self, model: str, job: Job) -> AsyncGenerator[Message, None]:
        self.jobs.append((model, job))
        self.running.add(job.id)
        try:
            async for message in self._messages(job):
                yield message
        finally:
            self.running.discard(job.id)
            self.closed.append(job.id)

    async def cancel(self, job_id: str) -> bool:
        self.cancelled.add(job_id)
        return job_id in self.running

    async def status(self) -> list[GroupStatus]:
        if self.unwell is not None:
            raise self.unwell
        return [GroupStatus(MODEL, "HEALTHY", 1)]

    async def workers(self, model: str) -> list[GroupWorkers]:
        if self.unwell is not None:
            raise self.unwell
        number = self.sizes.get(model, 2)
        return [GroupWorkers(2, number - 2, number, None), GroupWorkers(number, 0, number, "no place")]

    async def resize(self, model: str, num_workers: int) -> list[GroupWorkers]:
        if num_workers > ROOM_FOR_WORKERS:
            raise SettingsError(f"got {num_workers} workers; allowed: 1 to {ROOM_FOR_WORKERS}")
        self.sizes[model] = num_workers
        return await self.workers(model)

    async def _messages(self, job: Job) -> AsyncGenerator[Message, None]:
        limit = job.settings.get("max_new_tokens", 64)
        lengths = tuple(len(prompt) for prompt in job.prompts)
        if self.refuse is not None:
            raise self.refuse
        if max(lengths) + limit > ROOM:
            raise PromptTooLongError(f"{max(lengths)} and {limit} exceed max_model_len {ROOM}; ask for less")
        while self.hold_before:
            await self._step(job)
        yield Accepted(lengths, limit)
        while self.hold:
            await self._step(job)
        words = WORDS[:limit]
        for choice in range(len(job.prompts) * job.n):
            prompt = job.prompts[choice // job.n]
            front = prompt if job.echo and isinstance(prompt, str) else ""
            told = words if self.cut is None else words[: self.cut]
            for at, word in enumerate(told):
                if self.fail is not None and at == self.fail_after:
                    raise self.fail
                await self._step(job)
                if job.pictures:
                    yield _picture(choice, at, words)
                if job.pieces:
                    yield Piece(choice, (front if at == 0 else "") + word, _logprobs(job, (word,)))
            reason = None if self.cut is not None else "length" if limit <= len(WORDS) else "stop"
            yield Finished(
                choice=choice,
                text=front + "".join(told),
                finish_reason=reason,
                figures=RequestStats(
                    steps=5,
                    forwards=20,
                    tokens=len(told),
                    seconds=0.5,
                    queued_s=0.1,
                    seed=7 + choice,
                    phases_s={"plan": 0.1, "forward": 0.2},
                    commit_bytes=1000,
                ),
                logprobs=_logprobs(job, told),
                trace=({"name": "forward", "ph": "X", "ts": 1, "dur": 2, "pid": choice, "tid": 0},)
                if job.trace
                else (),
            )

    async def _step(self, job: Job) -> None:
        await asyncio.sleep(max(self.step_s, 0.005 if self.hold or self.hold_before else 0.0))
        if job.id in self.cancelled:
            raise RequestCancelledError(f"request {job.id} was cancelled")


def _logprobs(job: Job, words: tuple[str, ...]) -> tuple[TokenLogprob, ...]:
    if not job.logprobs:
        return ()
    top = (("Once", b"Once", -0.1), ("<x>", b"<x>", float("-inf")))[: job.settings.get("top_logprobs", 0)]
    return tuple(TokenLogprob(word, word.encode(), -0.25, top) for word in words)


def _picture(choice: int, at: int, words: tuple[str, ...]) -> CanvasSnapshot:
    cells = tuple(
        Cell(word if place <= at else "", place + 1 if place <= at else 0) for place, word in enumerate(words)
    )
    racers = (BranchView("anchor", "", float("nan")), BranchView("+1", words[at], 0.9))
    return CanvasSnapshot(choice, at + 1, cells, racers, winner=1, seconds=0.01 * at)


@dataclass
class Server:
    """A running server."""

    url: str
    backend: FakeBackend


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Fails if the condition does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


@contextlib.contextmanager
def serving(backend: FakeBackend | None = None, **settings: Any) -> Iterator[Server]:
    """The application over a fake backend, on a free port of the loopback."""
    backend = backend or FakeBackend()
    typed: Backend = backend
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        app = create_app(lambda: typed, HttpSettings(**settings))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.01)
            yield Server(f"http://127.0.0.1:{listener.getsockname()[1]}", backend)
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)


def refusal(response: httpx.Response, status: int) -> Any:
    """The error object of a refused request, checked for its shape."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    return ErrorObject.model_validate(response.json()).error
