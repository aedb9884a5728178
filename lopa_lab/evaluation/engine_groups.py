"""Several groups that share the requests of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lopa_ray.engine.base import Engine

Answer = TypeVar("Answer")


def on_groups(
    engines: Sequence[Engine], requests: int, run: Callable[[Engine, range], Iterator[tuple[int, Answer]]]
) -> Iterator[tuple[int, Answer]]:
    """Yield all answers of `run`, which is called for each group with every n-th request.

    Answers of a single group are yielded as they come, answers of several groups when a group has finished.
    """
    count = len(engines)
    if count == 1:
        yield from run(engines[0], range(requests))
        return
    parts = [range(first, requests, count) for first in range(count)]
    with ThreadPoolExecutor(count) as pool:
        for answers in pool.map(lambda engine, part: list(run(engine, part)), engines, parts):
            yield from answers
