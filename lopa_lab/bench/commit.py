"""`lopa bench commit`: what it costs to stage K/V of a span (pre-write) and to have them on every worker."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from itertools import product
from typing import Any

import torch

from actors.engine import RayEngine
from lopa_lab.bench.clock import Clock, TimedCall
from lopa_lab.bench.decoding import random_prompt, steps_of
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.bench.step_plans import StepSize, resolved_spec, step_of
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.config import Config
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.lane import lanes_of
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.step_report import StepTiming

BLOCKS = 10
"""Number of blocks in a decode. The commit of the prompt is left out."""

PRE_WRITE_REPEATS = 25


def measure_commits(
    name: str,
    configs: Sequence[Config],
    workers: Sequence[int],
    spans: Sequence[int],
    transports: Sequence[str],
    *,
    prompt: int,
    rounds: int,
) -> Measurements:
    """Decode LoPA with blocks as long as each span on each group.

    `configs` have models of different depth, and are alike otherwise. Raises what engines raise.
    """
    torch.set_num_threads(configs[0].group.threads)
    clock = Clock(torch.device(DEVICES[configs[0].model.device].torch_name))
    rows: list[Row] = []
    for config in configs:
        spec = resolved_spec(config, max_num_seqs=1, max_model_len=prompt + BLOCKS * max(spans))
        sizes = [StepSize(1, 1, span, prompt) for span in spans]
        staging_ms = dict(zip(spans, pre_write_ms(build_runner(spec), clock, sizes), strict=True))
        clock.free_memory()
        for count, transport in product(workers, transports):
            group: dict[str, Any] = {"num_workers": count}
            if transport != "single_phase":
                group["transfer"] = transport
            of_group = config.replace(model=spec.config.model, group=config.group.replace(**group))
            with RayEngine.from_config(of_group) as engine:
                for span in spans:
                    timings = _commit_timings(engine, transport, span, prompt, rounds)
                    # K and V of the span in all layers, and a boundary row.
                    values = span * math.prod(spec.model.kv_shape) + spec.model.hidden_size
                    sent = values if transport != "single_phase" and count > 1 else 0
                    rows.append(
                        {
                            "model": name,
                            "dtype": config.model.dtype,
                            "layers": spec.model.num_layers,
                            "workers": count,
                            "transport": transport,
                            "span": span,
                            "commits": len(timings),
                            "KiB": sent * spec.dtype.itemsize / 1024,
                            "pre-write ms": staging_ms[span],
                            "commit ms": _median_ms([timing.commit for timing in timings]),
                            "outside forward ms": _median_ms([sum(astuple(t)) - t.forward for t in timings]),
                        }
                    )
    return Measurements(
        ("model", "dtype", "layers", "workers", "transport", "span"),
        rows,
        f"commit: wall time that the slowest worker spends on it before its forward, medians over {rounds} decodes "
        f"with blocks as long as the span after a prompt of {prompt}, and one branch; single_phase under "
        "block-causal attention, other transports two-phase under full attention. pre-write: gathering "
        f"the span's K/V of one branch out of a forward, {clock.kind} of this process. outside forward: the whole "
        "step but its slowest forward. KiB: what is sent to each worker.",
    )


def _median_ms(seconds: Sequence[float]) -> float | None:
    return 1000 * statistics.median(seconds) if seconds else None


def _commit_timings(
    engine: RayEngine, transport: str, span: int, prompt: int, rounds: int
) -> list[StepTiming]:
    """The timing of each step that commits. One worker has the only branch of a step, and the others what it sends."""
    settings = LopaSettings(
        num_branches=1,
        block_size=span,
        block_add_threshold=1.0,  # one block at a time is in flight, so that each is committed by itself
        max_new_tokens=span * BLOCKS,
        confidence_threshold=0.0,  # a step fills a whole block, so that nearly every step commits one
        ignore_eos=True,
        window_attention="block_causal" if transport == "single_phase" else "full",
    )
    timings: list[StepTiming] = []
    for number in range(rounds):
        prompt_ids = random_prompt(random.Random(number), engine.vocabulary, prompt)
        for event in steps_of(engine, [engine.create_session(prompt_ids, settings)]):
            commit = event.plan.commit
            if commit is not None and commit.spans[0].start >= prompt and event.timing is not None:
                timings.append(event.timing)
    return timings


@torch.inference_mode()
def pre_write_ms(runner: BranchRunner, clock: Clock, sizes: Sequence[StepSize]) -> list[float]:
    """Median milliseconds of gathering the K/V of each size's whole window, of all its branches, out of a forward.

    All sizes are of one request. The runner's first slot is emptied.
    """
    calls = [_staging_call(runner, size) for size in sizes]
    runner.cache.reset(0, None)
    return clock.medians_ms(calls, repeats=PRE_WRITE_REPEATS)


def _staging_call(runner: BranchRunner, size: StepSize) -> TimedCall:
    (plan,) = size.plans(runner.vocabulary.mask_token_id, staged=size.window)
    runner.cache.reset(0, 1)
    runner.cache.mark_committed(0, plan.cached)
    step = step_of(runner, [plan])
    packing = Packing(lanes_of(step.requests[0]), (), runner.packing_options)
    columns = packing.to_device(runner.device)
    hidden, kv = runner.forward(packing, columns)
    assert kv is not None
    return TimedCall(partial(runner.staged, columns, hidden, kv))
