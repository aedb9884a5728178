"""`lopa bench commit`: what it costs to stage K/V of a span (pre-write) and to have them on every worker."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from itertools import product
from typing import Any, Literal, TypeAlias

import torch

from actors.engine import RayEngine
from lopa_lab.bench.clock import Clock
from lopa_lab.bench.pre_write import pre_write_ms
from lopa_lab.bench.prompts import random_prompt
from lopa_lab.bench.record import Measurements, Row
from lopa_lab.bench.step_size import StepSize
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.config import Config
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_loader import build_runner, resolve_auto
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.report import StepTiming

Transport: TypeAlias = Literal["collective", "object_store", "single_phase"]

TRANSPORTS: tuple[Transport, ...] = ("collective", "object_store", "single_phase")
"""How K/V of a winner reach the other workers. single_phase: each worker has computed them itself."""

BLOCKS = 10
"""Of each decode. The commit of the prompt is left out."""


def measure_commits(
    name: str,
    configs: Sequence[Config],
    workers: Sequence[int],
    spans: Sequence[int],
    transports: Sequence[Transport],
    *,
    prompt: int,
    rounds: int,
) -> Measurements:
    """Decode LoPA with blocks as long as each span on each group.

    `configs` have models of different depth, and are alike otherwise. Raises what engines raise.
    """
    torch.set_num_threads(configs[0].group.threads_per_worker)
    clock = Clock(torch.device(DEVICES[configs[0].model.device].torch_name))
    rows: list[Row] = []
    for config in configs:
        rows += _rows_of(name, config, clock, workers, spans, transports, prompt, rounds)
    return Measurements(
        ("model", "dtype", "layers", "workers", "transport", "span"),
        rows,
        f"commit: wall time that the slowest worker spends on it before its forward, medians over {rounds} decodes "
        f"with blocks as long as the span behind a prompt of {prompt}, and one branch; two-phase under full "
        "attention (collective, object_store), single-phase under block-causal attention. pre-write: gathering "
        f"the span's K/V of one branch out of a forward, {clock.kind} of this process. outside forward: the whole "
        "step but its slowest forward; the object store moves K/V there. KiB: what is sent to each worker.",
    )


def _rows_of(
    name: str,
    config: Config,
    clock: Clock,
    workers: Sequence[int],
    spans: Sequence[int],
    transports: Sequence[Transport],
    prompt: int,
    rounds: int,
) -> Iterator[Row]:
    room = prompt + BLOCKS * max(spans)
    spec = resolve_auto(
        ModelSpec.read(config.replace(model=config.model.replace(max_num_seqs=1, max_model_len=room)))
    )
    config = config.replace(model=spec.config.model)
    staging_ms = _staging_ms(spec, clock, spans, prompt)
    clock.free_memory()
    for count, transport in product(workers, transports):
        group: dict[str, Any] = {"num_workers": count}
        if transport != "single_phase":
            group["transfer"] = transport
        of_group = config.replace(group=config.group.replace(**group))
        with RayEngine.from_config(of_group) as engine:
            for span in spans:
                found = _commit_timings(engine, transport, span, prompt, rounds)
                bytes_ = _payload_bytes(spec, span)
                yield {
                    "model": name,
                    "dtype": config.model.dtype,
                    "layers": spec.model.num_layers,
                    "workers": count,
                    "transport": transport,
                    "span": span,
                    "commits": len(found),
                    "KiB": (0.0 if transport == "single_phase" or count == 1 else bytes_ / 1024),
                    "pre-write ms": staging_ms[span],
                    "commit ms": _median_ms([each.commit for each in found]),
                    "outside forward ms": _median_ms([sum(astuple(each)) - each.forward for each in found]),
                }


def _median_ms(seconds: Sequence[float]) -> float | None:
    return 1000 * statistics.median(seconds) if seconds else None


def _payload_bytes(spec: ModelSpec, span: int) -> int:
    """K and V of the span in all layers, and a boundary row."""
    layers, two, heads, dim = spec.model.kv_shape
    return (span * layers * two * heads * dim + spec.model.hidden_size) * spec.dtype.itemsize


def _commit_timings(
    engine: RayEngine, transport: Transport, span: int, prompt: int, rounds: int
) -> list[StepTiming]:
    """Of each step that commits. One worker has the only branch of a step, and the others what it sends."""
    settings = LopaSettings(
        num_branches=1,
        block_size=span,
        block_add_threshold=1.0,  # one block at a time is in flight, so that each is committed by itself
        max_new_tokens=span * BLOCKS,
        confidence_threshold=0.0,  # a step fills a whole block, so that nearly every step commits one
        ignore_eos=True,
        window_attention="block_causal" if transport == "single_phase" else "full",
    )
    found: list[StepTiming] = []
    for number in range(rounds):
        prompt_ids = random_prompt(random.Random(number), engine.vocabulary, prompt)
        found += _decode(engine, settings, prompt_ids)
    return found


def _decode(engine: RayEngine, settings: LopaSettings, prompt: Sequence[int]) -> Iterator[StepTiming]:
    for event in engine.events([engine.create_session(prompt, settings)]):
        if isinstance(event, RequestFailure):
            raise event.error
        commit = event.plan.commit
        if commit is not None and commit.spans[0].start >= len(prompt) and event.timing is not None:
            yield event.timing


def _staging_ms(spec: ModelSpec, clock: Clock, spans: Sequence[int], prompt: int) -> dict[int, float]:
    """Span → milliseconds of the pre-write, in this process."""
    sizes = [StepSize(1, 1, span, prompt) for span in spans]
    return dict(zip(spans, pre_write_ms(build_runner(spec), clock, sizes), strict=True))
