"""What a step costs the host: planning it, packing it for the device, taking in what the device answers.

    python benchmarks/host_cost.py

Nothing is computed: scores are random and so low that a step fills one position of a window of 64 masks, which lies
behind a prompt of 512. Medians over steps, in processor time of one thread. "packing" ends with the buffer that one
copy takes to the device; "reports" begins with the numbers that came back.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lopa_ray.config.decoder_settings import LopaSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.execution.lane import lanes_of
from lopa_ray.execution.packing import Packing, PackingOptions, bucket_rows
from lopa_ray.kernels.row_scores import SCORE_COLUMNS
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.report import StepReport
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.scheduling.scheduler import Scheduler
from tables import markdown_table

SIZES = ((1, 1), (1, 8), (1, 15), (8, 8), (32, 8))
"""Requests × branches."""

PROMPT, WINDOW = 512, 64

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

Result = TypeVar("Result")


@torch.inference_mode()
def pack(plan: StepPlan) -> Packing:
    """What a runner does before it asks anything of the device."""
    packing = Packing([lane for scheduled in plan.requests for lane in lanes_of(scheduled)], (), OPTIONS)
    packing.to_device(torch.device("cpu"))
    return packing


def report(plan: StepPlan, packing: Packing, numbers: npt.NDArray[np.float64]) -> StepReport:
    """What it answers."""
    return StepReport(plan.epoch, plan.step, *packing.rows_to_score.report(numbers, SCORE_COLUMNS))


def measure(requests: int, branches: int, steps: int) -> dict[str, float]:
    """Milliseconds per step, by what they are spent on."""
    scheduler = Scheduler(requests)
    settings = LopaSettings(
        num_branches=branches,
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
        if number == 2:
            spent.clear()  # so far prompts were fed
        (plan,) = timed("plan", partial(scheduler.plan, 1))
        packing = timed("packing", partial(pack, plan))
        rows = len(packing.columns.score_rows)
        numbers = draw.random((rows, SCORE_COLUMNS)) * 0.5
        numbers[:, 0] = draw.integers(0, 1000, rows)
        answer = timed("reports", partial(report, plan, packing, numbers.reshape(-1)))
        events = timed("advance", partial(scheduler.advance, [answer]))
        assert not any(isinstance(event, RequestFailure) for event in events)
    return {what: statistics.median(each) for what, each in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24, help="steps per row, the first two left out")
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    rows = [["requests × branches", "plan", "packing", "reports", "advance", "plan + packing + advance"]]
    for requests, branches in SIZES:
        spent = measure(requests, branches, steps)
        total = spent["plan"] + spent["packing"] + spent["advance"]
        numbers = (spent["plan"], spent["packing"], spent["reports"], spent["advance"], total)
        rows.append([f"{requests} × {branches}", *(f"{each:.2f} ms" for each in numbers)])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
