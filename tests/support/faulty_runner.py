"""Runners that fail when a request has a poisoned prompt, or while they load."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.slots import PayloadTransfer
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan

HANG_S = 60.0


class Poison(IntEnum):
    """A prompt that begins with one of these tokens makes a `FaultyRunner` fail."""

    ERROR = 96
    """In a forward."""
    OUT_OF_MEMORY = 97
    ERROR_BEFORE_BROADCAST = 98
    """On the worker that staged the winner's K/V, while its peers wait for them."""
    NAN = 99
    """All positions that attend to the token become NaN."""
    HANG = 100
    ILLEGAL_ACCESS = 101
    """As an illegal memory access on a GPU does: from then on every use of the device fails."""


class FaultyRunner:
    """Works as a `BranchRunner` until a step has a poisoned request."""

    def __init__(self, runner: BranchRunner) -> None:
        self._runner = runner
        self._poison: dict[int, Poison] = {}
        """Request → what its prompt begins with."""
        self._embeds_nan = False
        self._device_failed = False
        runner.model.embed.register_forward_hook(self._embed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: StepPlan, transfer: PayloadTransfer | None = None) -> LaunchedStep:
        for scheduled in plan.requests:
            if scheduled.plan.start == 0 and scheduled.plan.canvas[0] in list(Poison):
                self._poison[scheduled.request_id] = Poison(scheduled.plan.canvas[0])
        self._use_device()
        rank = None if transfer is None else transfer.rank
        self._fail(rank, [scheduled for scheduled in plan.requests if scheduled.request_id in self._poison])
        return self._runner.launch(plan, transfer)

    def reconcile(self, *arguments: Any) -> Any:
        self._use_device()
        return self._runner.reconcile(*arguments)

    def check_device(self) -> None:
        self._use_device()
        self._runner.check_device()

    def _use_device(self) -> None:
        if self._device_failed:
            raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    def _fail(self, rank: int | None, poisoned: Iterable[ScheduledRequest]) -> None:
        self._embeds_nan = False
        for scheduled in poisoned:
            poison = self._poison[scheduled.request_id]
            if poison is Poison.NAN:
                self._embeds_nan = True
            elif poison is Poison.ERROR_BEFORE_BROADCAST:
                if scheduled.source_rank == rank == 0:
                    raise RuntimeError("injected fault")
            elif scheduled.branch_indices:
                if poison is Poison.HANG:
                    time.sleep(HANG_S)
                elif poison is Poison.OUT_OF_MEMORY:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
                elif poison is Poison.ILLEGAL_ACCESS:
                    self._device_failed = True
                    self._use_device()
                raise RuntimeError("injected fault")

    def _embed(self, module: torch.nn.Module, inputs: tuple[Tensor], rows: Tensor) -> Tensor:
        return rows.masked_fill((inputs[0] == Poison.NAN)[:, None], torch.nan) if self._embeds_nan else rows


def faulty_runner(spec: ModelSpec, weights: Weights | None, tp_group: TensorParallelGroup) -> Any:
    """A runner factory."""
    return FaultyRunner(build_runner(spec, weights, tp_group))


class LoadFaultFactory:
    """Makes runners as they are, and fails to while a file exists; picklable."""

    def __init__(self, switch: Path) -> None:
        self._switch = switch

    def __call__(
        self, spec: ModelSpec, weights: Weights | None, tp_group: TensorParallelGroup
    ) -> BranchRunner:
        if self._switch.exists():
            raise RuntimeError("injected fault while loading")
        return build_runner(spec, weights, tp_group)


class SmallMemoryRunner:
    """Works as a `BranchRunner` in steps of at most `MAX_REQUESTS` requests with branches; larger ones lack memory."""

    MAX_REQUESTS = 2

    def __init__(self, runner: BranchRunner) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, plan: StepPlan, transfer: PayloadTransfer | None = None) -> LaunchedStep:
        if sum(bool(scheduled.branch_indices) for scheduled in plan.requests) > self.MAX_REQUESTS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self._runner.launch(plan, transfer)


def small_memory_runner(spec: ModelSpec, weights: Weights | None, tp_group: TensorParallelGroup) -> Any:
    """A runner factory."""
    return SmallMemoryRunner(build_runner(spec, weights, tp_group))
