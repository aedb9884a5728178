"""`lopa bench serve`: throughput and latency of a running server under load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cluster.bench.answered_request import AnsweredRequest, load_figures
from cluster.bench.guidellm_load import PROMPT_TOKENS, guidellm_closed_loop
from cluster.bench.http_load import Target, closed_loop, open_loop
from cluster.bench.record import Measurements, Row
from lopa_ray.errors import ClusterError
from lopa_ray.presets.word_problems import held_out_problems

SEED = 4
WARM_UPS = 8
"""Requests before the first load, of which nothing is kept."""


def measure_loads(
    target: Target,
    concurrency: Sequence[int],
    rates: Sequence[float],
    *,
    requests: int,
    deadline_s: float,
    guidellm: str | None = None,
) -> Measurements:
    """Send `requests` word problems per load: closed loops of so many clients, then open loops of so many requests per
    second, then the closed loops again by GuideLLM, if its command is given.

    Raises ClusterError if all requests of a load fail.
    """
    problems = held_out_problems(SEED, requests)
    asyncio.run(
        closed_loop(target, held_out_problems(SEED + 1, WARM_UPS), min(WARM_UPS, max(concurrency, default=1)))
    )
    rows = [
        *(_row("closed", n, asyncio.run(closed_loop(target, problems, n)), deadline_s) for n in concurrency),
        *(_row("open", rate, asyncio.run(open_loop(target, problems, rate)), deadline_s) for rate in rates),
    ]
    if guidellm is not None:
        rows += [
            _row("guidellm", n, guidellm_closed_loop(guidellm, target, requests, n), deadline_s)
            for n in concurrency
        ]
    settings = ", ".join(f"{name} {value}" for name, value in target.lopa.items())
    return Measurements(
        ("model", "settings", "loop", "load"),
        [{"model": target.model, "settings": settings or "the server's", **row} for row in rows],
        f"{requests} streamed chat completions per load, at most {target.max_tokens} new tokens; {WARM_UPS} before the "
        "first load are not counted. closed: so many clients, each with one request in flight; open: Poisson arrivals, "
        "so many per second, latency from when a request was due; guidellm: closed, with synthetic prompts of "
        f"{PROMPT_TOKENS} tokens. Tokens are as the server counts them.",
    )


def _row(loop: str, load: float, found: Sequence[AnsweredRequest], deadline_s: float) -> Row:
    if all(each.error for each in found):
        raise ClusterError(f"all {len(found)} requests failed; the first one: {found[0].error}")
    return {"loop": loop, "load": load, **load_figures(found, deadline_s)}
