"""`lopa bench pages`: slots or pages of K/V: what either reserves, and what a step's attention takes, at mixed lengths.

A slot is a contiguous run of positions; every branch reads a view of it and writes its window behind the prefix.
Pages are short runs of a common pool: a request has a table of them, its branches share those of the prefix, and each
branch has its own for the window. A kernel that knows no tables has them gathered into a contiguous copy first, for
each branch or, at best, once for all branches. Lengths are like GSM8K's with few or many examples in the prompt:
60 to 900 tokens, and 64 to 512 for the answer. The attention is one layer of Dream-7B's shape, in fp32.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from lopa_lab.bench.clock import Clock, TimedCall
from lopa_lab.bench.measurements import Measurements, Row
from lopa_ray.kernels.sdpa import sdpa

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 28, 4, 128, 28  # Dream-7B's
POSITION_MIB = 2 * LAYERS * KV_HEADS * HEAD_DIM * 2 / 2**20
"""K/V of a position in bfloat16, in MiB."""
WINDOW = 64
"""Positions in flight: two blocks of 32."""
TOKENS_PER_STEP = 6
PAGE_SIZES = (16, 64)
MAX_MODEL_LEN = 2048


def request_lengths(count: int) -> list[tuple[int, int]]:
    """Tokens of prompt and answer of each request; prompts are spread evenly on a logarithmic scale."""
    rng = random.Random(0)
    prompts = [round(math.exp(rng.uniform(math.log(60), math.log(900)))) for _ in range(count)]
    return [(prompt, rng.randint(64, 512)) for prompt in prompts]


def simulate_steps(requests: list[tuple[int, int]], in_flight: int) -> Iterator[list[tuple[int, int]]]:
    """Step by step, of each request in flight: positions before its window, and in the end."""
    waiting, running = deque(requests), list[tuple[int, int]]()
    while waiting or running:
        while waiting and len(running) < in_flight:
            prompt, answer = waiting.popleft()
            running.append((prompt, prompt + answer))
        yield running
        running = [(at + TOKENS_PER_STEP, end) for at, end in running if at + TOKENS_PER_STEP < end]


def paged_positions(cached: int, page: int, branches: int) -> int:
    """Positions in pages: full ones of the prefix are shared, a last partial one and the window are each branch's."""
    return page * (cached // page + branches * math.ceil((cached % page + WINDOW) / page))


def _memory_rows(requests: list[tuple[int, int]], in_flight: int, branches: Sequence[int]) -> Iterator[Row]:
    """K/V in MiB, at the fullest step and on average, on a worker that has all branches."""
    longest = max(prompt + answer for prompt, answer in requests)
    for what, capacity in (("max_model_len", MAX_MODEL_LEN), ("the longest request", longest)):
        reserved = in_flight * capacity * POSITION_MIB
        for count in branches:
            name = f"slots of {what}, {capacity}"
            yield {"K/V": name, "branches": count, "most MiB": reserved, "mean MiB": reserved}
    for when, page, count in product(("for all of the answer", "when needed"), PAGE_SIZES, branches):
        used = [
            sum(
                paged_positions(at if when == "when needed" else end - WINDOW, page, count)
                for at, end in step
            )
            for step in simulate_steps(requests, in_flight)
        ]
        most, mean = max(used) * POSITION_MIB, statistics.fmean(used) * POSITION_MIB
        name = f"pages of {page}, taken {when}"
        yield {"K/V": name, "branches": count, "most MiB": most, "mean MiB": mean}


def attention_step(cached: int, branches: int, page: int | None, gathers: int) -> Callable[[], Tensor]:
    """Attention of one layer over all branches of a request; `page` None: in a slot, without gathering.

    The function returns [WINDOW, HEADS, HEAD_DIM] of the last branch, in fp32.
    """
    new, q = torch.randn(2, KV_HEADS, WINDOW, HEAD_DIM), torch.randn(WINDOW, HEADS, HEAD_DIM)
    slot, end = torch.randn(2, KV_HEADS, MAX_MODEL_LEN, HEAD_DIM), cached + WINDOW
    pool = slot.unflatten(2, (-1, page or WINDOW))
    table = torch.randperm(pool.shape[2])[: math.ceil(end / pool.shape[3])]

    def step() -> Tensor:
        """The rows of the last branch."""
        kv: Tensor = slot
        mixed = q
        for branch in range(branches):
            if page is not None and branch < gathers:
                kv = pool.index_select(2, table).flatten(2, 3)
            kv[:, :, cached:end] = new
            mixed = sdpa(q, kv[0, :, :end], kv[1, :, :end])
        return mixed

    return step


def _time_rows(requests: list[tuple[int, int]], branches: Sequence[int], repeats: int) -> Iterator[Row]:
    """Milliseconds of processor time, means over requests that are half decoded, and their ratio to slots."""
    clock = Clock(torch.device("cpu"))
    variants: list[tuple[str, int | None, int]] = [("slots", None, 0)]
    for page in PAGE_SIZES:
        variants += [(f"pages of {page}, gathered per branch", page, max(branches))]
        variants += [(f"pages of {page}, gathered once", page, 1)]
    for count in branches:
        # Other work adds to processor time, so the least of several counts.
        timings = []
        for prompt, answer in requests:
            cached = prompt + answer // 2
            calls = [TimedCall(attention_step(cached, count, page, gathers)) for _, page, gathers in variants]
            timings.append([min(times) for times in clock.times_ms(calls, repeats)])
        means = [statistics.fmean(of_variant) for of_variant in zip(*timings, strict=True)]
        for (name, _, _), mean in zip(variants, means, strict=True):
            yield {"K/V": name, "branches": count, "attention ms": mean, "× slots": mean / means[0]}


def measure_pages(requests: int, in_flight: int, branches: Sequence[int], repeats: int) -> Measurements:
    """Memory of so many requests, and the attention of a tenth of them."""
    torch.set_num_threads(1)
    lengths = request_lengths(requests)
    timed = lengths[: max(1, requests // 10)]
    return Measurements(
        ("K/V", "branches"),
        [*_memory_rows(lengths, in_flight, branches), *_time_rows(timed, branches, repeats)],
        f"{requests} requests with prompts of 60 to 900 tokens and answers of 64 to 512, {in_flight} in flight; "
        f"K/V of Dream-7B's shape in bfloat16. attention: one layer in fp32 over windows of {WINDOW} positions of "
        f"{len(timed)} requests, the least of {repeats} turns of processor time of one thread.",
    )
