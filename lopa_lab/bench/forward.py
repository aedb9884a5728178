"""`lopa bench forward`: a worker's step, without commits, compared with what the device could do.

The floor of a step: its bytes at the rate of a copy, or its operations at the rate of a matmul.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, cast

import torch
from torch import nn

from lopa_lab.bench.batched_forward import BatchedForward
from lopa_lab.bench.clock import Clock, TimedCall
from lopa_lab.bench.measurements import Measurements, Row, number
from lopa_lab.bench.step_plans import StepSize, resolved_spec, step_of
from lopa_ray.engine.config import Config
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.transformer import Transformer

REPEATS = 9


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """The measured rates of a device."""

    bytes_per_s: float
    """Read and written by a copy."""
    operations_per_s: float
    """Multiplications and additions of a square matmul."""

    @classmethod
    @torch.inference_mode()
    def measure(cls, device: torch.device, dtype: torch.dtype) -> DeviceRates:
        """Measure `device`, with products in `dtype`, with the threads that torch has now."""
        on_cpu = device.type == "cpu"
        # More bytes than any cache holds, and matrices of several sizes, of which the best rate counts.
        source = torch.zeros(2**28 if on_cpu else 2**30, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        sizes = (256, 512, 1024) if on_cpu else (4096, 8192)
        matrices = [torch.randn(size, size, device=device).to(dtype) for size in sizes]
        products = [TimedCall(partial(torch.matmul, matrix, matrix)) for matrix in matrices]
        copy_ms, *product_ms = Clock(device).medians_ms(
            [TimedCall(lambda: target.copy_(source)), *products], REPEATS
        )
        rates = [2e3 * size**3 / ms for size, ms in zip(sizes, product_ms, strict=True)]
        return cls(2e3 * source.numel() / copy_ms, max(rates))


def floor_ms(runner: BranchRunner, size: StepSize, rates: DeviceRates) -> float | None:
    """Milliseconds: the larger one of both bounds; None for experts, of which a step need not read or multiply all.

    Bytes: the weights but for the embedding, and each request's prefix, once. Operations: products of all rows with
    these weights, and of queries with the keys and values that they see.
    """
    embedding = runner.model.embed.weight
    tied = runner.model.lm_head.weight is embedding
    parameters = dict(cast(nn.Module, runner.model).named_parameters())
    if any("expert" in name for name in parameters):
        return None
    weights = [weight for weight in parameters.values() if tied or weight is not embedding]
    read = sum(weight.numel() * weight.element_size() for weight in weights)
    read += size.requests * size.prefix * runner.position_bytes
    config = runner.model.shard_config
    seen = size.prefix + size.window
    attention = 4 * size.rows * seen * config.num_layers * config.num_heads * config.head_dim
    operations = 2 * size.rows * sum(weight.numel() for weight in weights) + attention
    return 1000 * max(read / rates.bytes_per_s, operations / rates.operations_per_s)


TOGETHER_BYTES = 2 * 2**30
"""Runners take turns if their weights together are at most this large; else they are measured one after the other."""

VARIANT_SETTINGS = (
    "dtype",
    "quantization",
    "attention",
    "implementation",
    "cuda_graphs",
    "batch_invariant",
)
"""Settings of `model` that rows may differ in."""


def measure_forwards(
    name: str,
    model: dict[str, Any],
    variants: dict[str, Sequence[Any]],
    sizes: Sequence[StepSize],
    *,
    repeats: int,
    threads: int,
) -> Measurements:
    """Time `BranchRunner.execute` for each variant (setting of `VARIANT_SETTINGS` → values) and size.

    `model`: the settings that all have. Raises SettingsError and CheckpointError.
    """
    torch.set_num_threads(threads)
    room = {
        "max_num_seqs": max(size.requests for size in sizes),
        "max_model_len": max(size.prefix + size.window for size in sizes),
    }
    config = Config.parse({"model": model})
    specs = [
        resolved_spec(config, **room, **dict(zip(variants, values, strict=True)))
        for values in product(*variants.values())
    ]
    together = sum(spec.weight_bytes for spec in specs) <= TOGETHER_BYTES
    clock = Clock(torch.device(DEVICES[specs[0].config.model.device].torch_name))
    rows: list[Row] = []
    for group in [specs] if together else [[spec] for spec in specs]:
        rows += _measure_group(name, group, sizes, clock, repeats)
        clock.free_memory()
    return Measurements(
        ("model", *VARIANT_SETTINGS, "requests", "branches", "window", "prefix"),
        rows,
        f"Medians over {repeats} calls of {clock.kind}, {threads} threads, variants and sizes in "
        f"turns{'' if together else ', one variant after the other'}. step: BranchRunner.execute, plan to report. "
        "floor: the larger one of bytes ÷ measured copy rate and operations ÷ measured matmul rate. plain: a "
        "batched forward [requests × branches, window] of the same weights in torch's own functions, which "
        "appends the window to each branch's copy of the prefix in every layer, without scoring.",
    )


def _measure_group(
    name: str, specs: Sequence[ModelSpec], sizes: Sequence[StepSize], clock: Clock, repeats: int
) -> list[Row]:
    """The rows of models that are in memory together."""
    runners = [build_runner(spec) for spec in specs]
    rates = {dtype: DeviceRates.measure(clock.device, dtype) for dtype in {spec.dtype for spec in specs}}
    rows: list[Row] = []
    timed: list[tuple[Row, str, TimedCall]] = []
    for spec, runner in zip(specs, runners, strict=True):
        settings = spec.config.model
        for size in sizes:
            row: Row = {"model": name, **{key: getattr(settings, key) for key in VARIANT_SETTINGS}}
            row |= {key: getattr(size, key) for key in ("requests", "branches", "window", "prefix", "rows")}
            row |= dict.fromkeys(("step ms", "floor ms", "step ÷ floor", "plain ms", "step ÷ plain"))
            rows.append(row)
            timed.append((row, "step ms", _runner_call(runner, size)))
            if settings.quantization == "none":
                row["floor ms"] = floor_ms(runner, size, rates[spec.dtype])
            if (
                isinstance(runner.model, Transformer)
                and runner.model.config.experts is None
                and settings.quantization == "none"
                and not settings.batch_invariant
            ):
                timed.append((row, "plain ms", _plain_call(runner, size, clock.device)))
    medians = clock.medians_ms([call for _, _, call in timed], repeats)
    for (row, column, _), median in zip(timed, medians, strict=True):
        row[column] = median
    for row in rows:
        for bound in ("floor", "plain"):
            if row[f"{bound} ms"] is not None:
                row[f"step ÷ {bound}"] = number(row, "step ms") / number(row, f"{bound} ms")
    return rows


def _runner_call(runner: BranchRunner, size: StepSize) -> TimedCall:
    """A step, which finds the cache as its plans presuppose it."""
    plans = size.plans(runner.vocabulary.mask_token_id)

    def prepare() -> None:
        for slot, plan in enumerate(plans):
            runner.cache.reset(slot, slot + 1)
            runner.cache.mark_committed(slot, plan.cached)

    prepare()
    return TimedCall(partial(runner.execute, step_of(runner, plans)), prepare)


def _plain_call(runner: BranchRunner, size: StepSize, device: torch.device) -> TimedCall:
    assert isinstance(runner.model, Transformer)
    batch = size.requests * size.branches
    prefix = runner.cache.data[0, :, :, :, : size.prefix]
    forward = BatchedForward(runner.model, batch, size.window, prefix)
    ids = torch.full((batch, size.window), runner.vocabulary.mask_token_id, device=device)
    return TimedCall(partial(forward, ids))
