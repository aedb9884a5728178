"""`lopa bench serve`: throughput and latency of a running server under load."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from lopa_lab.bench.load import AnsweredRequest, Target, closed_loop, load_figures, open_loop
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.bench.model_shapes import SHAPES, model_to_measure
from lopa_lab.bench.own_processes import own_server
from lopa_lab.word_problems import held_out_problems
from lopa_ray.errors import ClusterError

SEED = 4
WARM_UPS = 8
"""Requests before the first load, of which nothing is kept."""


@contextmanager
def started_server(start: str, layers: int | None, settings: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A server of the model or shape `start` (see `model_to_measure`) with `settings` of a configuration.

    Yields the model's name in tables, and the server's address. Raises ClusterError.
    """
    with model_to_measure(start, start if start in SHAPES else None, layers) as (name, model):
        if "load_format" in model:
            settings = [*settings, f"model.load_format={model['load_format']}"]
        words = [word for setting in settings for word in ("--set", setting)]
        with own_server(["--model", model["path"], *words]) as url:
            yield name, url


def measure_server(
    name: str,
    target: Target,
    *,
    concurrency: Sequence[int],
    rates: Sequence[float],
    requests: int,
    deadline_s: float,
) -> Measurements:
    """Send word problems: closed loops of so many clients, then open loops of so many arrivals per second; so many
    requests each.

    `name`: what the table calls the model. Answers within `deadline_s` seconds count as goodput. Raises ClusterError if
    all requests of a load fail.
    """
    problems = held_out_problems(SEED, requests)
    asyncio.run(closed_loop(target, held_out_problems(SEED + 1, WARM_UPS), WARM_UPS))
    row = partial(_row, deadline_s)
    rows = [row("closed", n, asyncio.run(closed_loop(target, problems, n))) for n in concurrency]
    rows += [row("open", rate, asyncio.run(open_loop(target, problems, rate))) for rate in rates]
    settings = ", ".join(f"{name} {value}" for name, value in target.lopa.items()) or "the server's"
    return Measurements(
        ("model", "settings", "loop", "load"),
        [{"model": name, "settings": settings, **of_load} for of_load in rows],
        f"{requests} streamed chat completions per load, at most {target.max_tokens} new tokens; {WARM_UPS} before the "
        "first load are not counted. closed: so many clients, each with one request in flight; open: Poisson arrivals, "
        "so many per second, latency from when a request was due. Tokens are as the server counts them.",
    )


def _row(deadline_s: float, loop: str, load: float, requests: Sequence[AnsweredRequest]) -> Row:
    if all(request.error for request in requests):
        raise ClusterError(f"all {len(requests)} requests failed; the first one: {requests[0].error}")
    return {"loop": loop, "load": load, **load_figures(requests, deadline_s)}
