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
    """What `run` yields of each group and the indices of its requests: each group has every n-th one.

    A single group's are yielded as they come, those of several when a group is through.
    """
    count = len(engines)
    if count == 1:
        yield from run(engines[0], range(requests))
        return
    parts = [range(first, requests, count) for first in range(count)]
    with ThreadPoolExecutor(count) as pool:
        for answers in pool.map(lambda engine, part: list(run(engine, part)), engines, parts):
            yield from answers
