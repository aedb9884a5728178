"""`lopa bench host`: what a step costs the host: planning, packing for the device, and taking in what it answers."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np
import torch

from lopa_lab.bench.decoding import not_failed
from lopa_lab.bench.launch_counter import META
from lopa_lab.bench.measurements import Measurements, Row
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.execution.lane import lanes_of
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.kernels.padding import bucket_rows
from lopa_ray.kernels.row_scores import SCORE_COLUMNS
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.scheduling.scheduler import Scheduler

PROMPT, WINDOW = 512, 64

WARM_UPS = 2
"""Steps that feed prompts."""

VOCABULARY = Vocabulary(152_064, 151_666, 151_643, shifted=True)

OPTIONS = PackingOptions(
    capacity=2048,
    heads_per_kv_head=7,
    vocab_size=VOCABULARY.size,
    mask_token_id=VOCABULARY.mask_token_id,
    eos_token_id=VOCABULARY.eos_token_id,
    shift=1,
    fuse_greedy=True,
    bucket=bucket_rows,
)

Lookahead: TypeAlias = Literal["lopa", "verified"]

LOOKAHEADS: tuple[Lookahead, ...] = get_args(Lookahead)

Result = TypeVar("Result")


@torch.inference_mode()
def _pack(plan: StepPlan) -> Packing:
    """The work of a runner before it uses the device."""
    packing = Packing([lane for scheduled in plan.requests for lane in lanes_of(scheduled)], (), OPTIONS)
    packing.to_device(META)
    return packing


def _measure(requests: int, branches: int, lookahead: Lookahead, steps: int) -> Row:
    """The figures of one size."""
    scheduler = Scheduler(requests)
    settings = LopaSettings(
        num_branches=branches,
        lookahead=lookahead,
        max_new_tokens=WINDOW,
        block_size=WINDOW,
        confidence_threshold=0.99,
        ignore_eos=True,
    )
    for at in range(requests):
        prompt = [(31 * at + position) % 1000 for position in range(PROMPT)]
        scheduler.submit(new_session(prompt, settings, VOCABULARY))
    draw = np.random.default_rng(0)
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(what: str, call: Callable[[], Result]) -> Result:
        began = time.thread_time()
        result = call()
        spent[what].append(1000 * (time.thread_time() - began))
        return result

    for number in range(steps):
        if number == WARM_UPS:
            spent.clear()
        (plan,) = timed("plan", partial(scheduler.plan, 1))
        packing = timed("packing", partial(_pack, plan))
        rows = len(packing.columns.score_rows)
        numbers = draw.random((rows, SCORE_COLUMNS)) * 0.5
        numbers[:, 0] = draw.integers(0, 1000, rows)
        returned = partial(packing.rows_to_score.report, numbers.reshape(-1), SCORE_COLUMNS)
        answer = StepReport(plan.epoch, plan.step, *timed("reports", returned))
        events = timed("advance", partial(scheduler.advance, [answer]))
        for event in events:
            not_failed(event)
    medians = {f"{what} ms": statistics.median(times) for what, times in spent.items()}
    total = sum(medians[f"{what} ms"] for what in ("plan", "packing", "advance"))
    size = {"requests": requests, "branches": branches, "lookahead": lookahead}
    return {**size, **medians, "plan + packing + advance ms": total}


def measure_host(sizes: Sequence[tuple[int, int]], steps: int) -> Measurements:
    """Time `steps` steps of each size, requests × branches, on one thread."""
    torch.set_num_threads(1)
    return Measurements(
        ("requests", "branches", "lookahead"),
        [_measure(*size, lookahead, steps) for size in sizes for lookahead in LOOKAHEADS],
        f"Medians over {steps} steps, the first {WARM_UPS} left out, of processor time of one thread. Nothing is "
        f"computed: scores are random, and so low that a step fills the fewest positions of a window of {WINDOW} "
        f"masks, behind a prompt of {PROMPT}. packing ends with the buffer that one copy takes to an accelerator; "
        "reports begins with the numbers that came back.",
    )
