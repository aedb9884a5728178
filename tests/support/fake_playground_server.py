"""A server for the playground page: it replays one decode over the real protocol, and can fail in every way."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cluster.serving.http.playground_routes import playground_routes
from cluster.serving.replica.request_defaults import request_defaults
from lopa_ray.decoding.decoders import override_settings
from lopa_ray.engine.config import Config
from support.fake_backend import running

# The text of each position and the step that decides it.
DECODE = [
    *[("Mia", 1), (" has", 1), (" ", 1), ("4", 1), ("*", 2), ("8", 2), ("=", 2), ("3", 3), ("2", 3)],
    *[(" pens", 2), (".", 1), (" Mia", 2), (" has", 2), (" ", 3), ("3", 3), ("2", 3), ("-", 4), ("1", 4)],
    *[("2", 4), ("=", 4), ("2", 6), ("0", 6), (" pens", 5), (" left", 4), (".\n", 5), ("####", 5), (" ", 5)],
    *[("2", 7), ("0", 7), ("<|endoftext|>", 5), ("", 6), ("", 6)],
]
STEPS = max(step for _, step in DECODE)
TEXT = "".join(text for text, _ in DECODE[:29])
TOKENS = 30


@dataclass
class FakeServer:
    """What tests set before a run, and what they read after it."""

    url: str = ""
    decode: list[tuple[str, int]] = field(default_factory=lambda: list(DECODE))
    models: list[str] = field(default_factory=lambda: ["demo"])
    settings: dict[str, Any] = field(default_factory=dict)
    """Decode settings of the model's configuration."""
    step_seconds: float = 0.02
    api_key: str | None = None
    error: tuple[int, str, dict[str, str]] | None = None
    """Status, message and headers that every completion is answered with."""
    error_param: str | None = "temperature"
    """The field that this error is about."""
    error_code: str | None = None
    error_decoder: str | None = None
    """The error is for requests that name this decoder; None: for all."""
    slow_decoder: str | None = None
    """Of two requests, the one that names it is refused after the other one."""
    quick_decoder: str | None = None
    """Requests that name it take half of the steps."""
    refused: int = 0
    """How many requests were answered with `error`."""
    pause_before_steps: bool = False
    """The stream waits before the first step for as long as this is set."""
    error_step: int | None = None
    """The step in whose place the stream carries an error."""
    pause_after_step: int | None = None
    """The stream waits after this step for as long as this names it."""
    entropy: bool = False
    """Confidences are negative entropies."""
    verified: bool = False
    """The branches beside the anchor are drafts: the first one is wrong, all others are accepted."""
    text: str = TEXT
    reasoning: str = ""
    """What a chat's answer has in front of its text."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments of each function that a chat's answer calls."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    client_disconnected: threading.Event = field(default_factory=threading.Event)
    """A client left before its stream was finished."""

    def app(self) -> FastAPI:
        """The application; its routes are those of the page."""
        posts = [
            Route(f"/v1/{path}", self._complete, methods=["POST"])
            for path in ("chat/completions", "completions")
        ]
        defaults = Route("/models/{model:path}/defaults", self._defaults)
        app = FastAPI(routes=[Route("/v1/models", self._models), defaults, *posts])
        app.include_router(playground_routes())
        return app

    async def _models(self, request: Request) -> Response:
        data = [{"id": name, "object": "model"} for name in self.models]
        return self._unauthorized(request) or JSONResponse({"object": "list", "data": data})

    async def _defaults(self, request: Request) -> Response:
        """Those of the preset demo, as the server has them."""
        model = request.path_params["model"]
        config = Config.load("demo")
        config = config.replace(decode=override_settings(config.decode, self.settings))
        defaults = request_defaults(model, config).model_copy(update={"is_demo_model": model == "demo"})
        return self._unauthorized(request) or JSONResponse(defaults.model_dump())

    async def _complete(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        self.bodies.append(await request.json())
        decoder = self.bodies[-1]["lopa"].get("decoder", "lopa")
        while decoder == self.slow_decoder and self.refused % 2 == 0:
            await asyncio.sleep(0.01)
        if self.error and self.error_decoder in (None, decoder):
            self.refused += 1
            status, message, headers = self.error
            return _error(status, message, self.error_param, headers, self.error_code)
        chat = request.url.path == "/v1/chat/completions"
        return self._unauthorized(request) or StreamingResponse(
            self._stream(chat, decoder), media_type="text/event-stream"
        )

    def _unauthorized(self, request: Request) -> Response | None:
        if self.api_key and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return _error(401, "API key: got none that is known; send one of the server's keys")
        return None

    async def _stream(self, chat: bool, decoder: str) -> AsyncIterator[str]:
        finished, source = False, self
        if decoder == self.quick_decoder:
            source = replace(self, decode=[(text, (step + 1) // 2) for text, step in self.decode])
        try:
            while self.pause_before_steps:
                await asyncio.sleep(0.01)
            for chunk in source._chunks(chat):
                step = chunk.get("lopa", {}).get("canvas", {}).get("step")
                if step is not None:
                    await asyncio.sleep(self.step_seconds)
                yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
                while step is not None and self.pause_after_step == step:
                    await asyncio.sleep(0.01)
            yield "data: [DONE]\n\n"
            finished = True
        finally:
            if not finished:
                self.client_disconnected.set()

    def _chunks(self, chat: bool) -> Iterator[dict[str, Any]]:
        steps = max(step for _, step in self.decode)
        for step in range(1, steps + 1):
            if step == self.error_step:
                yield {"error": {"message": "a worker was lost", "type": "server_error", "code": "lost"}}
                return
            yield {"choices": [], "lopa": {"canvas": self._canvas(step, steps)}}
        for delta in self._chat_deltas() if chat else [{"text": self.text}]:
            yield {"choices": [{"index": 0, "finish_reason": None, **delta}]}
        rule_steps = sum(len(self._rule_steps(step, 0)) for step in range(1, steps + 1))
        cost = {"steps": steps, "forwards": 4 * steps - 3, "tokens": TOKENS, "tpf": TOKENS / steps}
        cost["rule_steps"] = rule_steps
        last_choice = {
            "index": 0,
            "finish_reason": "stop",
            "lopa": {**cost, "seconds": steps * 0.05, "queued_seconds": 0.0},
        }
        yield {"choices": [{**last_choice, **({"delta": {}} if chat else {"text": ""})}]}
        yield {"choices": [], "usage": {"prompt_tokens": 39, "completion_tokens": TOKENS}}

    def _chat_deltas(self) -> Iterator[dict[str, Any]]:
        yield {"delta": {"role": "assistant", "content": ""}}
        if self.reasoning:
            yield {"delta": {"reasoning_content": self.reasoning}}
        if self.text:
            yield {"delta": {"content": self.text}}
        for index, (name, arguments) in enumerate(self.calls):
            first = {"id": f"call-{index}", "type": "function", "function": {"name": name, "arguments": ""}}
            yield {"delta": {"tool_calls": [{"index": index, **first}]}}
            yield {"delta": {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}}

    def _canvas(self, step: int, steps: int) -> dict[str, Any]:
        cells = [{"t": text, "s": s} if s <= step else {"t": "", "s": 0} for text, s in self.decode]
        undecided = [f"{text}@{at}" for at, (text, s) in enumerate(self.decode) if s >= step]
        tried = [(f"+{i}", what) for i, what in enumerate(undecided[:3], 1)]
        names = [*tried, ("anchor", "")] if step > 1 else [("anchor", "")]
        if self.verified:
            names = [("anchor", ""), ("+1", "no@0"), *self._drafts(step)]
        confidences = [
            0.55 + 0.4 * step / steps + 0.045 * math.sin(7 * step + 3 * i) for i in range(len(names))
        ]
        branches = [
            {"name": name, "tried": what, "confidence": math.log(c) if self.entropy else c}
            for (name, what), c in zip(names, confidences, strict=True)
        ]
        winner = max(range(len(confidences)), key=confidences.__getitem__)
        rule_steps = self._rule_steps(step, winner)
        seconds = step * 0.05
        return {
            "choice": 0,
            "step": step,
            "seconds": seconds,
            "cells": cells,
            "branches": branches,
            "winner": rule_steps[-1]["branch"],
            "rule_steps": rule_steps,
            "candidates": self._candidates(step),
        }

    def _candidates(self, step: int) -> list[dict[str, Any]]:
        """Of positions that are masked before the step. The nearer the best one is to its step, the more probable."""
        tokens = [(at, text, 0.95 * step / s) for at, (text, s) in enumerate(self.decode[:40]) if s >= step]
        return [
            {"position": at, "tokens": [text, f"{text}?", "no"], "probabilities": [best, 0.03, 0.01]}
            for at, text, best in tokens
        ]

    def _rule_steps(self, step: int, winner: int) -> list[dict[str, Any]]:
        """What the rule filled in a step: all of it by the winner's report, or by those of the anchor and drafts."""
        positions = [at for at, (_, s) in enumerate(self.decode) if s == step]
        if not self.verified:
            return [{"branch": winner, "positions": positions}]
        groups = [positions[at::3] for at in range(min(3, len(positions)))]
        return [{"branch": at + (at > 0), "positions": group} for at, group in enumerate(groups)]

    def _drafts(self, step: int) -> list[tuple[str, str]]:
        """The accepted drafts of a step: what the rule has filled before it takes their reports."""
        drafts, tried = [], []
        for at, rule_step in enumerate(self._rule_steps(step, 0)[:-1], 2):
            tried += [f"{self.decode[p][0]}@{p}" for p in rule_step["positions"]]
            drafts.append((f"+{at}", " ".join(tried)))
        return drafts


def _error(
    status: int,
    message: str,
    param: str | None = None,
    headers: dict[str, str] | None = None,
    code: str | None = None,
) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return JSONResponse({"error": error}, status, headers)


@contextmanager
def serve(fake: FakeServer) -> Iterator[FakeServer]:
    """In the context it runs."""
    with running(fake.app()) as url:
        fake.url = f"{url}/"
        yield fake
