"""A fake backend, and a server around the HTTP application over it, for tests of the HTTP layer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

from cluster.choices.answer_parser import AnswerDelta
from cluster.choices.decision_message import DecisionMessage
from cluster.choices.messages import (
    CanvasBranch,
    CanvasCell,
    CanvasRuleStep,
    ChoiceCanvas,
    ChoiceCost,
    ChoiceFinished,
    ChoiceFinishReason,
    ChoicesOutput,
    ChoicesRequest,
    OwnedId,
    PromptToTokenize,
    RequestAccepted,
    TextDelta,
    TokenizeResponse,
    TokenLogprob,
    ToolCallDelta,
)
from cluster.openai.errors import ErrorObject
from cluster.serving.http.asgi_app import create_app
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.protocol.backend import Backend
from cluster.serving.protocol.messages import GroupHealth, GroupState, ReplicaMetrics, WorkersOfGroup
from lopa_ray.decisions.answers import DecisionResult, answer
from lopa_ray.decisions.questions import orders_of
from lopa_ray.errors import PromptError, PromptTooLongError, RequestCancelledError, SettingsError
from lopa_ray.text.tool_format import ToolCall
from support.local_group import demo_group

if TYPE_CHECKING:
    pass

MODEL, OTHER_MODEL = "fake", "team/fake-2"
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HI: list[Any] = [{"role": "user", "content": "hi"}]
WORDS = ("Once", " upon", " a", " time", " — «", "ünïcode", "»", "\u2028", "🙂", " end.")
TOOL_PARTS = (
    AnswerDelta(reasoning="let me"),
    AnswerDelta(reasoning=" see"),
    AnswerDelta(content="I ask"),
    AnswerDelta(content=" around"),
    AnswerDelta(tool_call=ToolCallDelta(0, "add", '{"a": 1,')),
    AnswerDelta(tool_call=ToolCallDelta(0, None, ' "é": 2}')),
    AnswerDelta(tool_call=ToolCallDelta(1, "stop", "{}")),
)
"""An answer with reasoning, text and two calls."""
MAX_MODEL_LEN = 2048
MAX_WORKERS = 8
VOCABULARY_SIZE = 128
AWAKE = GroupState(weight_version=0, is_paused=False, is_sleeping=False)


@dataclass
class FakeBackend:
    """Answers every prompt with the same parts, one token each, `step_s` seconds apart.

    Tests inject faults: `rejection` is raised before RequestAccepted, `failure` after `failure_after` words;
    `hold` makes it wait for ever behind RequestAccepted; the deadline comes after `deadline_after` words.
    """

    models: tuple[str, ...] = (MODEL, OTHER_MODEL)
    parts: tuple[AnswerDelta, ...] = tuple(AnswerDelta(word) for word in WORDS)
    step_s: float = 0.0
    rejection: Exception | None = None
    failure: Exception | None = None
    failure_after: int = 2
    hold: bool = False
    hold_before_accepting: bool = False
    deadline_after: int | None = None
    status_error: Exception | None = None
    requests: list[tuple[str, ChoicesRequest]] = field(default_factory=list)
    running: set[OwnedId] = field(default_factory=set)
    closed: list[str] = field(default_factory=list)
    cancelled: set[OwnedId] = field(default_factory=set)
    num_workers: dict[str, int] = field(default_factory=dict)
    states: list[GroupState] = field(default_factory=lambda: [AWAKE, AWAKE])
    controls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    replica_metrics: list[ReplicaMetrics] = field(default_factory=list)
    tokenized: list[tuple[str, PromptToTokenize]] = field(default_factory=list)
    decisions: list[tuple[str, DecisionMessage]] = field(default_factory=list)

    def reset(self) -> None:
        """Back to how it was made."""
        vars(self).update(vars(FakeBackend()))

    def stream(self, model: str, call: Callable[..., Any], request: Any) -> AsyncGenerator[Any, None]:
        outputs: AsyncGenerator[Any, None] = getattr(self, call.__name__)(model, request)
        return outputs

    async def ask(self, model: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """A call that has no fake here is answered by a group of the model in the package."""
        error = self.rejection or self.status_error
        if error is not None:
            raise error
        fake = getattr(self, call.__name__, None)
        if fake is not None:
            return await fake(model, *arguments)
        return await getattr(demo_group(model)[0], call.__name__)(*arguments)

    ask_all = ask

    async def generate(self, model: str, request: ChoicesRequest) -> AsyncGenerator[ChoicesOutput, None]:
        self.requests.append((model, request))
        self.running.add(request.owned_id)
        try:
            async for output in self._outputs(request):
                yield output
        finally:
            self.running.discard(request.owned_id)
            self.closed.append(request.id)

    async def decide(self, model: str, request: DecisionMessage) -> AsyncGenerator[DecisionResult, None]:
        """The nth value of each question is n + 1 times as probable as the first."""
        self.decisions.append((model, request))
        self.running.add(request.owned_id)
        try:
            if self.rejection is not None:
                raise self.rejection
            while self.hold:
                await self._step(request)
            likelihoods = [
                tuple(math.log(at + 1) for at in range(len(orders_of(question, 1)[0])))
                for question in request.questions
            ]
            yield DecisionResult(
                answers=tuple(
                    answer(question, [values])
                    for question, values in zip(request.questions, likelihoods, strict=True)
                ),
                log_likelihoods=tuple((values,) for values in likelihoods),
                input_tokens=20,
                cached_tokens=4,
                saved_tokens=16,
                output_tokens=len(request.questions),
                steps=2,
                forwards=1 + len(request.questions),
                seconds=0.5,
            )
        finally:
            self.running.discard(request.owned_id)
            self.closed.append(request.id)

    async def cancel(self, owned_id: OwnedId) -> bool:
        found = owned_id in self.running
        if found:
            self.cancelled.add(owned_id)
        return found

    async def tokenize(self, model: str, given: PromptToTokenize) -> TokenizeResponse:
        """A text's tokens are its characters, behind token 1; a chat's those of its contents."""
        prompt = given.prompt
        self.tokenized.append((model, given))
        if isinstance(prompt, str):
            tokens = [1] * given.add_special_tokens + list(map(ord, prompt))
        else:
            tokens = [ord(char) for message in prompt for char in message["content"]]
        return TokenizeResponse(
            count=len(tokens),
            max_model_len=MAX_MODEL_LEN,
            tokens=tokens,
            token_strs=list(map(chr, tokens)),
        )

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        if any(token >= VOCABULARY_SIZE for token in tokens):
            raise PromptError(f"the vocabulary has ids 0 to {VOCABULARY_SIZE - 1}; correct it")
        return "".join(map(chr, tokens))

    async def metrics(self) -> list[ReplicaMetrics]:
        return self.replica_metrics

    async def status(self) -> list[GroupHealth]:
        if self.status_error is not None:
            raise self.status_error
        return [GroupHealth(model=MODEL, status="HEALTHY", replicas=1)]

    async def workers(self, model: str) -> list[WorkersOfGroup]:
        number = self.num_workers.get(model, 2)
        return [
            WorkersOfGroup(workers=2, coming=number - 2, wanted=number, problem=None),
            WorkersOfGroup(workers=number, coming=0, wanted=number, problem="no place"),
        ]

    async def resize(self, model: str, num_workers: int) -> list[WorkersOfGroup]:
        if num_workers > MAX_WORKERS:
            raise SettingsError(f"got {num_workers} workers; allowed: 1 to {MAX_WORKERS}")
        self.num_workers[model] = num_workers
        return await self.workers(model)

    async def control(self, model: str, method: str, arguments: dict[str, Any]) -> list[GroupState]:
        self.controls.append((model, method, arguments))
        return self.states

    async def _outputs(self, request: ChoicesRequest) -> AsyncGenerator[ChoicesOutput, None]:
        limit = request.settings.get("max_new_tokens", 64)
        lengths = tuple(len(prompt) for prompt in request.prompts)
        if self.rejection is not None:
            raise self.rejection
        if max(lengths) + limit > MAX_MODEL_LEN:
            raise PromptTooLongError(
                f"{max(lengths)} and {limit} exceed max_model_len {MAX_MODEL_LEN}; ask for less"
            )
        while self.hold_before_accepting:
            await self._step(request)
        yield RequestAccepted(lengths, limit)
        while self.hold:
            await self._step(request)
        parts = self.parts[:limit]
        for choice in range(len(request.prompts) * request.n):
            prompt = request.prompts[choice // request.n]
            front = prompt if request.echo and isinstance(prompt, str) else ""
            shown = parts if self.deadline_after is None else parts[: self.deadline_after]
            for at, part in enumerate(shown):
                if self.failure is not None and at == self.failure_after:
                    raise self.failure
                await self._step(request)
                if request.stream_canvas:
                    yield _snapshot(choice, at, tuple(map(_text, parts)))
                if request.stream:
                    text = (front if at == 0 else "") + part.content
                    logprobs = _logprobs(request, (part,))
                    yield TextDelta(choice, text, logprobs, part.reasoning, part.tool_call, at + 1)
            yield ChoiceFinished(
                choice=choice,
                text=front + "".join(part.content for part in shown),
                finish_reason=self._finish_reason(limit),
                stats=ChoiceCost(
                    steps=5,
                    forwards=20,
                    rule_steps=6,
                    tokens=len(shown),
                    tpf=len(shown) / 5,
                    seconds=0.5,
                    queued_seconds=0.1,
                    seed=7 + choice,
                    phases_seconds={"plan": 0.1, "forward": 0.2},
                    commit_bytes=1000,
                ),
                logprobs=_logprobs(request, shown),
                reasoning="".join(part.reasoning for part in shown),
                reasoning_tokens=sum(bool(part.reasoning) for part in shown),
                tool_calls=_calls(shown),
                trace=({"name": "forward", "ph": "X", "ts": 1, "dur": 2, "pid": choice, "tid": 0},)
                if request.trace
                else (),
            )

    def _finish_reason(self, limit: int) -> ChoiceFinishReason | None:
        if self.deadline_after is not None:
            return None
        if limit <= len(self.parts):
            return "length"
        return "tool_calls" if any(part.tool_call for part in self.parts) else "stop"

    async def _step(self, request: ChoicesRequest | DecisionMessage) -> None:
        await asyncio.sleep(max(self.step_s, 0.005 if self.hold or self.hold_before_accepting else 0.0))
        if request.owned_id in self.cancelled:
            raise RequestCancelledError(f"request {request.id} was cancelled")


def _text(part: AnswerDelta) -> str:
    return part.content or part.reasoning or (part.tool_call.arguments if part.tool_call else "")


def _calls(parts: Sequence[AnswerDelta]) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    for delta in (part.tool_call for part in parts if part.tool_call is not None):
        before = calls.pop() if delta.name is None else ToolCall(delta.name, "")
        calls.append(ToolCall(before.name, before.arguments + delta.arguments))
    return tuple(calls)


def _logprobs(request: ChoicesRequest, parts: Sequence[AnswerDelta]) -> tuple[TokenLogprob, ...]:
    if not request.logprobs:
        return ()
    top = ((1, "Once", b"Once", -0.1), (2, "<x>", b"<x>", float("-inf")))
    top = top[: request.settings.get("top_logprobs", 0)]
    texts = [_text(part) for part in parts]
    ids = {"Once": 1, "<x>": 2} | {text: 3 + at for at, text in enumerate(texts) if text != "Once"}
    return tuple(TokenLogprob(ids[text], text, text.encode(), -0.25, top, text.encode()) for text in texts)


def _snapshot(choice: int, at: int, words: tuple[str, ...]) -> ChoiceCanvas:
    cells = tuple(
        CanvasCell(word if place <= at else "", place + 1 if place <= at else 0)
        for place, word in enumerate(words)
    )
    branches = (CanvasBranch("anchor", "", None), CanvasBranch("+1", words[at], 0.9))
    rule_steps = (CanvasRuleStep(1, (at,)),)
    return ChoiceCanvas(choice, at + 1, 0.01 * at, cells, branches, winner=1, rule_steps=rule_steps)


@dataclass
class Server:
    """A running server."""

    url: str
    backend: FakeBackend


@contextlib.contextmanager
def serving(backend: FakeBackend | None = None, **settings: Any) -> Iterator[Server]:
    """The application over a fake backend."""
    backend = backend or FakeBackend()
    typed: Backend = backend
    with running(create_app(lambda: typed, HttpSettings(**settings))) as url:
        yield Server(url, backend)


@contextlib.contextmanager
def running(app: Any) -> Iterator[str]:
    """The URL of an application on a free port of the loopback, in a thread."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)


def error_of(response: httpx.Response, status: int) -> Any:
    """The error object of a response, checked for its shape."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    return ErrorObject.model_validate(response.json()).error
