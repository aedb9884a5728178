"""`lopa bench recovery`: how long a request pauses when a worker, or its whole group, is killed."""

from __future__ import annotations

import math
import os
import random
import signal
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from actors.engine import RayEngine
from lopa_lab.bench.decoding import random_prompt, steps_of
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.bench.own_processes import actor_processes, own_ray
from lopa_ray.engine.config import Config
from lopa_ray.errors import WorkerLostError

STORE_BYTES = 200 * 2**20

KILLED = {"worker": "BranchWorker", "group": "Master"}
"""Kind of actor that is killed → its class. A group ends with its master."""

MANY_STEPS = {"ignore_eos": True, "num_branches": 4, "confidence_threshold": 1.0}
"""Settings with which few tokens are sure enough to be filled at once."""

STEPS_BEFORE = 8
"""Steps of a request before the kill."""

WHOLE_AGAIN_S = 120.0
"""A group that has not got all its workers back by then is given up."""


def measure_recoveries(
    name: str, model: dict[str, Any], workers: Sequence[int], rounds: int, new_tokens: int
) -> Measurements:
    """Kill a worker, or the master, of groups of so many workers, `rounds` times each.

    `model`: settings of the section. Raises what engines raise, and WorkerLostError if a group does not get all its
    workers back.
    """
    rows: list[Row] = []
    for count in workers:
        config = Config.parse(
            {
                "model": model,
                "group": {"num_workers": count},
                "decode": {"max_new_tokens": new_tokens, **MANY_STEPS},
            }
        )
        others = {what: actor_processes(actor) for what, actor in KILLED.items()}
        with own_ray(count, STORE_BYTES), RayEngine.from_config(config) as engine:
            undisturbed = [_decode(engine) for _ in range(rounds)]
            steps = [gap for gaps, _ in undisturbed for gap in gaps]
            for what, actor in KILLED.items():
                if what == "worker" and count == 1:
                    continue  # a group without workers is lost as a whole
                pauses, same = [], True
                for _ in range(rounds):
                    gaps, tokens = _decode(engine, (actor, others[what]))
                    pauses.append(max(gaps))
                    same = same and tokens == undisturbed[0][1]
                    _wait_until_whole(engine, count)
                rows.append(
                    {
                        "model": name,
                        "workers": count,
                        "killed": what,
                        "step ms": 1000 * statistics.median(steps),
                        "pause s": statistics.median(pauses),
                        "longest pause s": max(pauses),
                        "same tokens": same,
                    }
                )
    return Measurements(
        ("model", "workers", "killed"),
        rows,
        f"{rounds} requests per row, one after the other, each of {new_tokens} tokens; after {STEPS_BEFORE} steps a "
        "process gets SIGKILL: a worker's (worker), or the master's, which ends all workers (group). pause: the "
        "longest gap between two steps from then on, as the client sees it, wall time; median and longest. step: the "
        "median gap of undisturbed requests. same tokens: as undisturbed.",
    )


def _decode(
    engine: RayEngine, kill: tuple[str, set[int]] | None = None
) -> tuple[list[float], tuple[int, ...]]:
    """Decode one request, and kill one of the actors of a class meanwhile, but none of the given processes.

    Returns the seconds from each step to the next, of the steps after the kill, and the tokens.
    """
    prompt = random_prompt(random.Random(0), engine.vocabulary, 16)
    times: list[float] = []
    tokens: tuple[int, ...] = ()
    killed_at = -math.inf
    for event in steps_of(engine, [engine.create_session(prompt)]):
        times.append(time.monotonic())
        tokens = event.outcome.canvas
        if kill is not None and len(times) == STEPS_BEFORE:
            actor, others = kill
            os.kill(min(actor_processes(actor) - others), signal.SIGKILL)
            killed_at = time.monotonic()
    return [after - before for before, after in pairwise(times) if after > killed_at], tokens


def _wait_until_whole(engine: RayEngine, workers: int) -> None:
    """Wait until the group has all its workers."""
    began = time.monotonic()
    while (status := engine.status()).workers < workers:
        if time.monotonic() > began + WHOLE_AGAIN_S:
            raise WorkerLostError(
                f"{status.workers} of {workers} workers {WHOLE_AGAIN_S:g} s after one was killed: {status.last_error}"
            )
        time.sleep(0.1)
