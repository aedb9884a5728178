"""Slots or pages? What either way of keeping K/V reserves, and what a step's attention takes, at mixed lengths.

    OMP_NUM_THREADS=1 python benchmarks/paged_kv.py

A slot is a contiguous run of positions; every branch reads a view of it and writes its window behind the prefix.
Pages are short runs of a common pool: a request has a table of them, its branches share those of the prefix, and each
branch has its own for the window. A kernel that knows no tables has them gathered into a contiguous copy first, for
each branch or, at best, once for all branches. Lengths are like GSM8K's with few or many examples in the prompt:
60 to 900 tokens, and 64 to 512 for the answer. The attention is one layer of Dream-7B's shape, in fp32.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lopa_ray.kernels.sdpa import sdpa
from tables import markdown_table

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


def memory_rows(requests: list[tuple[int, int]], in_flight: int, branches: list[int]) -> list[list[str]]:
    """The first table: K/V in MiB, at the fullest step and on average, on a worker that has all branches."""
    rows = [["K/V", "branches", "most, MiB", "mean, MiB"]]
    longest = max(prompt + answer for prompt, answer in requests)
    for name, capacity in (("max_model_len", MAX_MODEL_LEN), ("the longest request", longest)):
        reserved = f"{in_flight * capacity * POSITION_MIB:.0f}"
        rows.append([f"slots of {name}, {capacity}", "any", reserved, reserved])
    for when in ("for all of the answer", "when needed"):
        for page in PAGE_SIZES:
            for count in branches:
                used = [
                    sum(
                        paged_positions(at if when == "when needed" else end - WINDOW, page, count)
                        for at, end in step
                    )
                    for step in simulate_steps(requests, in_flight)
                ]
                most, mean = max(used) * POSITION_MIB, statistics.fmean(used) * POSITION_MIB
                rows.append([f"pages of {page}, taken {when}", str(count), f"{most:.0f}", f"{mean:.0f}"])
    return rows


def least_cpu_ms(variants: list[Callable[[], None]], repeats: int) -> list[float]:
    """Processor time of each variant, in turns; the least of several, since other work on the machine adds to it."""
    least = [math.inf] * len(variants)
    for _ in range(repeats):
        for index, step in enumerate(variants):
            began = time.thread_time()
            step()
            least[index] = min(least[index], 1000 * (time.thread_time() - began))
    return least


def attention_step(cached: int, branches: int, page: int | None, gathers: int) -> Callable[[], None]:
    """One layer over all branches of a request; `page` None: in a slot, without gathering."""
    new, q = torch.randn(2, KV_HEADS, WINDOW, HEAD_DIM), torch.randn(WINDOW, HEADS, HEAD_DIM)
    slot, end = torch.randn(2, KV_HEADS, MAX_MODEL_LEN, HEAD_DIM), cached + WINDOW
    pool = slot.unflatten(2, (-1, page or WINDOW))
    table = torch.randperm(pool.shape[2])[: math.ceil(end / pool.shape[3])]

    def step() -> None:
        kv: Tensor = slot
        for branch in range(branches):
            if page is not None and branch < gathers:
                kv = pool.index_select(2, table).flatten(2, 3)
            kv[:, :, cached:end] = new
            sdpa(q, kv[0, :, :end], kv[1, :, :end])

    return step


def time_rows(requests: list[tuple[int, int]], branches: list[int], repeats: int) -> list[list[str]]:
    """The second table: mean over requests that are half decoded, and its ratio to slots."""
    variants: list[tuple[str, int | None, int]] = [("slots", None, 0)]
    for page in PAGE_SIZES:
        variants += [(f"pages of {page}, gathered per branch", page, max(branches))]
        variants += [(f"pages of {page}, gathered once", page, 1)]
    columns = [["K/V", *(name for name, _, _ in variants)]]
    for count in branches:
        timings = [
            least_cpu_ms(
                [attention_step(p + a // 2, count, page, gathers) for _, page, gathers in variants], repeats
            )
            for p, a in requests
        ]
        means = [statistics.fmean(each) for each in zip(*timings, strict=True)]
        columns.append([f"branches: {count}", *(f"{mean:.2f} ms ({mean / means[0]:.2f})" for mean in means)])
    return [list(row) for row in zip(*columns, strict=True)]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--requests", type=int, default=200, help="for the memory; a tenth of them for the time"
    )
    parser.add_argument("--in-flight", type=int, default=8, help="requests at once (model.max_num_seqs)")
    parser.add_argument("--branches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    requests = request_lengths(arguments.requests)
    print(markdown_table(memory_rows(requests, arguments.in_flight, arguments.branches)), end="\n\n")
    print(
        markdown_table(
            time_rows(requests[: max(1, arguments.requests // 10)], arguments.branches, arguments.repeats)
        )
    )


if __name__ == "__main__":
    main()
