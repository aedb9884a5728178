"""What a step costs where transformers runs the model, against this project's own transformer.

    python benchmarks/implementation_cost.py
    python benchmarks/implementation_cost.py --device cuda --dtype bfloat16 --attention triton

A Markdown table. A step is one request's: branches of a window of masks behind a cached prompt, on models with random
weights. Both implementations take turns, and what is shown are medians, of processor time of one thread on CPUs and of
wall time elsewhere.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Sequence

import torch

from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.execution.attention_backends import select_backend
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_loader import DTYPES
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.checkpoint import load_config
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.families import family_of
from lopa_ray.model.implementation import build_model, random_weights
from lopa_ray.model.transformers_families import translate_native
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan
from tables import markdown_table

SEED = 3
PROMPT, WINDOW = 256, 32
CAPACITY = 512

LARGE = {
    "hidden_size": 1024,
    "num_layers": 4,
    "num_heads": 16,
    "num_kv_heads": 8,
    "head_dim": 64,
    "intermediate_size": 3072,
    "vocab_size": 4000,
    "mask_token_id": 1,
    "eos_token_id": 0,
    "stop_token_ids": (),
}


def by_transformers(config: ModelConfig) -> ModelConfig:
    """The same model, to be run by transformers."""
    return dataclasses.replace(
        config, transformers_config=json.dumps(translate_native(config, family_of(config)))
    )


def make_runner(config: ModelConfig, arguments: argparse.Namespace) -> BranchRunner:
    """A runner of random weights."""
    device, dtype = DEVICES[arguments.device], DTYPES[arguments.dtype]
    where = device.torch_device()
    weights = random_weights(config, SEED, dtype, where)
    return BranchRunner(
        build_model(config, weights, dtype=dtype, device=where),
        max_num_seqs=1,
        max_model_len=CAPACITY,
        attention=select_backend(arguments.attention, device, config, dtype, CAPACITY),
    )


def make_step(runner: BranchRunner, branches: int) -> StepPlan:
    """A step that may be run again and again."""
    runner.cache.reset(0, 0)
    runner.cache.mark_committed(0, (range(PROMPT),))
    stop = PROMPT + WINDOW
    plan = Plan(
        epoch=0,
        step=1,
        start=PROMPT,
        canvas=(runner.vocabulary.mask_token_id,) * WINDOW,
        branches=(Branch(((stop, stop),)),) * branches,
        cached=(range(PROMPT),),
        scored=range(PROMPT, stop),
    )
    return StepPlan(0, 1, (ScheduledRequest(0, 0, plan, tuple(range(branches))),))


def interleaved_ms(runners: Sequence[BranchRunner], branches: int, repeats: int, device: str) -> list[float]:
    """Median milliseconds of a step, for each runner."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    steps = [make_step(runner, branches) for runner in runners]
    times: list[list[float]] = [[] for _ in runners]
    for repeat in range(-3, repeats):
        for runner, step, found in zip(runners, steps, times, strict=True):
            began = clock()
            runner.execute(step)
            if repeat >= 0:
                found.append(clock() - began)
    return [1000 * statistics.median(found) for found in times]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--branches", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--attention", default="auto")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    demo = load_config(DEMO_MODEL)
    large = dataclasses.replace(demo, **LARGE)
    rows = [["model", "rows", "native", "transformers", "ratio"]]
    for name, config in (("demo", demo), ("4 layers of 1024", large)):
        runners = [make_runner(each, arguments) for each in (config, by_transformers(config))]
        for branches in arguments.branches:
            native, other = interleaved_ms(runners, branches, arguments.repeats, arguments.device)
            rows.append(
                [name, f"{branches * WINDOW}", f"{native:.2f} ms", f"{other:.2f} ms", f"{other / native:.2f}"]
            )
    print("\n" + markdown_table(rows))


if __name__ == "__main__":
    main()
