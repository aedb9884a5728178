"""`lopa bench step`: where the time of a step goes, in this process and on groups of workers."""

from __future__ import annotations

import random
import statistics
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from itertools import islice

import torch

from actors.engine import RayEngine
from lopa_lab.bench.decoding import local_steps, random_prompt, steps_of
from lopa_lab.bench.launch_counter import count_launches
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.bench.step_plans import StepSize, resolved_spec
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.config import NativeConfig
from lopa_ray.protocol.events import RequestStep
from lopa_ray.protocol.step_report import StepTiming

WARM_UPS = 5
"""First steps, which are not counted."""

LOCAL = 0
"""The number of workers that stands for this process, without Ray."""


def measure_steps(
    name: str,
    config: Config,
    workers: Sequence[int],
    shards: Sequence[int],
    branches: Sequence[int],
    *,
    requests: int,
    prompt: int,
    steps: int,
) -> Measurements:
    """Decode `requests` prompts of `prompt` random tokens together for so many steps, for each number of workers
    (`LOCAL`: in this process, without shards), of shards and of branches. Raises what engines raise."""
    room = prompt + config.decode.max_new_tokens
    spec = resolved_spec(config, max_num_seqs=requests, max_model_len=room)
    config = config.replace(model=spec.config.model)
    rows: list[Row] = []
    tokens: dict[int, tuple[tuple[int, ...], ...]] = {}
    grids = [(count, size) for count in workers for size in (shards if count else (1,))]
    for count, size in grids:
        grid = {"num_workers": max(count, 1), "tensor_parallel_size": size}
        of_group = config.replace(group=config.group.replace(**grid))
        with _open(of_group, count) as engine:
            for number in branches:
                settings = engine.config.decode.replace(num_branches=number)
                with closing(_steps(engine, settings, requests, prompt)) as all_steps:
                    timings, decoded = zip(*islice(all_steps, WARM_UPS + steps), strict=True)
                same = decoded == tokens[number] if number in tokens else None
                tokens.setdefault(number, decoded)
                rows.append(
                    {
                        "model": name,
                        "dtype": config.model.dtype,
                        "workers": count,
                        "shards": size,
                        "branches": number,
                        "requests": requests,
                        "steps": steps,
                        **_phase_figures(timings[WARM_UPS:]),
                        "same tokens": same,
                        **_launches(engine.config, number, max(count, 1), requests, prompt),
                    }
                )
    return Measurements(
        ("model", "dtype", "workers", "shards", "branches", "requests"),
        rows,
        f"Medians of wall time over {steps} steps of the first of {requests} requests that begin together: prompts "
        f"of {prompt} random tokens, {config.decode.max_new_tokens} new tokens, {config.group.threads} "
        "threads per worker; workers 0: in this process. commit and forward are the slowest worker's, and step is "
        "the sum of all phases. control: a step without its forward and commit. same tokens: as in the first row "
        "with as many branches. Launches, copies and waits: of one worker on an accelerator, counted on "
        "torch's meta device (window: a block).",
    )


def _open(config: Config, workers: int) -> Engine:
    if workers == LOCAL:
        torch.set_num_threads(config.group.threads)
        return LocalEngine.from_config(config)
    return RayEngine.from_config(config)


def _steps(
    engine: Engine, settings: GenerationSettings, requests: int, prompt: int
) -> Generator[tuple[StepTiming, tuple[int, ...]]]:
    """Timing of each step that the first of the requests takes part in, and that request's canvas after it.

    Others are decoded after these, without end; to close the generator ends those in flight.
    """
    draw = random.Random(0)
    while True:
        prompts = [random_prompt(draw, engine.vocabulary, prompt) for _ in range(requests)]
        sessions = [engine.create_session(ids, settings) for ids in prompts]
        events: Iterable[RequestStep] = steps_of(engine, sessions)
        if isinstance(engine, LocalEngine):
            events = (event for step in local_steps(engine, sessions) for event in step.events)
        for event in events:
            if event.request_key == 0 and event.timing is not None:
                yield event.timing, event.outcome.canvas


def _launches(config: Config, branches: int, workers: int, requests: int, prompt: int) -> Row:
    """Counts of the worker with the most branches; None for shards, and for models that transformers runs."""
    model = ModelSpec.read(config).model
    if not isinstance(model, NativeConfig) or config.group.tensor_parallel_size > 1:
        return dict.fromkeys(("launches", "copies in", "waits"))
    longest = config.decode.max_new_tokens
    size = StepSize(
        requests, -(-branches // workers), min(getattr(config.decode, "block_size", longest), longest), prompt
    )
    counter = count_launches(replace(model, quantization="none"), size)
    return {"launches": counter.total, "copies in": counter.copies_in, "waits": counter.syncs}


def _phase_figures(timings: Sequence[StepTiming]) -> Row:
    """Median milliseconds of each phase, of a step without its forward and commit, and of a whole step."""
    seconds = [asdict(timing) for timing in timings]
    for phases in seconds:
        total = sum(phases.values())
        phases |= {"control": total - phases["forward"] - phases["commit"], "step": total}
    return {f"{what} ms": 1000 * statistics.median(s[what] for s in seconds) for what in seconds[0]}
