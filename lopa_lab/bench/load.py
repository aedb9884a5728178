"""Load on a server: clients that wait for their answers (closed loop), or arrivals at a rate (open loop).

AnsweredRequest is what a client saw of one request; `load_figures` are the figures of many.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import aiohttp

from lopa_lab.bench.measurements import Row, percentile_ms
from lopa_lab.word_problems import Problem, is_correct
from lopa_ray.errors import ClusterError


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """One request; times in seconds."""

    began: float
    """The time when it was due, on any clock that all requests share."""
    ended: float
    first_token: float | None
    """Seconds from when it was due to the first text; None if there was none."""
    tokens: int
    steps: int | None = None
    """Steps of the decoder; None where the server does not say."""
    forwards: int | None = None
    correct: bool | None = None
    """Whether the answer solves the problem; None where that is not known."""
    error: str | None = None

    @property
    def latency(self) -> float:
        """Seconds until the end of the answer."""
        return self.ended - self.began


def load_figures(requests: Sequence[AnsweredRequest], deadline_s: float) -> Row:
    """Throughput, latencies and goodput of the requests of one load.

    Percentiles are of the requests that were answered: the value that so large a share does not exceed.
    """
    answered = [request for request in requests if request.error is None]
    seconds = max(request.ended for request in requests) - min(request.began for request in requests)
    latencies = sorted(request.latency for request in answered)
    first_tokens = sorted(request.first_token for request in answered if request.first_token is not None)
    in_time = sum(latency <= deadline_s for latency in latencies)
    graded = [request.correct for request in answered if request.correct is not None]
    steps = sum(request.steps or 0 for request in answered)
    return {
        "sent": len(requests),
        "failed": len(requests) - len(answered),
        "requests/s": len(answered) / seconds,
        "tokens/s": sum(request.tokens for request in answered) / seconds,
        "first token p50 ms": percentile_ms(first_tokens, 0.5),
        "first token p99 ms": percentile_ms(first_tokens, 0.99),
        "latency p50 ms": percentile_ms(latencies, 0.5),
        "latency p95 ms": percentile_ms(latencies, 0.95),
        "latency p99 ms": percentile_ms(latencies, 0.99),
        f"goodput within {deadline_s:g} s, requests/s": in_time / seconds,
        "TPF": sum(request.tokens for request in answered) / steps if steps else None,
        "branches per step": sum(request.forwards or 0 for request in answered) / steps if steps else None,
        "solved %": 100 * statistics.fmean(graded) if graded else None,
    }


TIMEOUT_S = 600.0
"""Until the end of an answer."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server that requests go to, and what all of them have."""

    url: str
    model: str
    max_tokens: int
    lopa: dict[str, Any]
    """The `lopa` object of each request."""
    api_key: str | None = None


async def find_model(url: str, api_key: str | None) -> str:
    """The first model that a server lists. Raises ClusterError if it cannot be asked."""
    try:
        async with _open(url, api_key) as session, session.get("/v1/models") as response:
            answer = await response.json(content_type=None)
            if response.status != 200:
                raise ClusterError(f"{url} answered {response.status}: {json.dumps(answer)[:200]}")
            return str(answer["data"][0]["id"])
    except (aiohttp.ClientError, OSError) as error:
        raise ClusterError(f"cannot reach {url} ({error}); does lopa serve run there?") from None
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ClusterError(f"{url} lists no models as OpenAI's API does ({error!r})") from None


async def closed_loop(target: Target, problems: Sequence[Problem], clients: int) -> list[AnsweredRequest]:
    """So many clients, each of which sends its next request when it has its answer."""
    remaining = iter(problems)

    async def client(session: aiohttp.ClientSession) -> list[AnsweredRequest]:
        return [await _send(session, target, problem, time.perf_counter()) for problem in remaining]

    async with _open(target.url, target.api_key) as session:
        return list(chain(*await asyncio.gather(*(client(session) for _ in range(clients)))))


async def open_loop(target: Target, problems: Sequence[Problem], rate: float) -> list[AnsweredRequest]:
    """Requests that arrive at random, `rate` per second on average, whether or not others are answered."""
    async with _open(target.url, target.api_key) as session:
        began = time.perf_counter()

        async def arrive(problem: Problem, at: float) -> AnsweredRequest:
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            return await _send(session, target, problem, began + at)

        arrivals = zip(problems, arrival_times(rate), strict=False)
        return list(await asyncio.gather(*(arrive(problem, at) for problem, at in arrivals)))


def arrival_times(rate: float) -> Iterator[float]:
    """Seconds of the arrivals of a Poisson process, the same each time."""
    draw, at = random.Random(0), 0.0
    while True:
        at += draw.expovariate(rate)
        yield at


def _open(url: str, api_key: str | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
    )


async def _send(
    session: aiohttp.ClientSession, target: Target, problem: Problem, due: float
) -> AnsweredRequest:
    """One streamed chat completion. A failure is part of the result."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": problem.question}],
        "max_tokens": target.max_tokens,
        "lopa": target.lopa,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first_token, text, last = None, "", {}
    try:
        async with session.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                return _failed(due, f"status {response.status}: {(await response.text())[:300]}")
            async for chunk in _chunks(response):
                if "error" in chunk:
                    return _failed(due, json.dumps(chunk["error"])[:300])
                for choice in chunk["choices"]:
                    delta = choice["delta"].get("content") or ""
                    if delta and first_token is None:
                        first_token = time.perf_counter() - due
                    text += delta
                last = chunk
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        return _failed(due, f"{type(error).__name__}: {error}")
    if not last.get("usage"):
        return _failed(due, "the stream ended without usage")
    cost = last.get("lopa") or {}
    return AnsweredRequest(
        due,
        time.perf_counter(),
        first_token,
        last["usage"]["completion_tokens"],
        cost.get("steps"),
        cost.get("forwards"),
        is_correct(problem, text),
    )


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The objects of a stream of server-sent events, up to the line that ends it."""
    async for line in response.content:
        field, _, value = line.decode().strip().partition(": ")
        if field == "data" and value != "[DONE]":
            yield json.loads(value)


def _failed(due: float, error: str) -> AnsweredRequest:
    return AnsweredRequest(due, time.perf_counter(), None, 0, error=error)
