"""Runners that raise, hang or compute NaN when a request has a poisoned prompt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actors.branch_worker import default_runner
from lopa_ray.config.config import Config
from lopa_ray.execution.runner import BranchRunner, BroadcastPayload
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.report import StepReport

POISON_TOKEN = 99
"""A prompt that ends in this token makes the runners of this module fail."""


class FaultyRunner:
    """Works as a `BranchRunner` until a step has a poisoned request; then it raises, or hangs.

    With `before_broadcast` it is the worker that staged the winner's K/V which raises, while its
    peers already wait for them.
    """

    def __init__(self, runner: BranchRunner, error: Exception, hang_s: float, before_broadcast: bool) -> None:
        self._runner = runner
        self._error = error
        self._hang_s = hang_s
        self._before_broadcast = before_broadcast
        self._poisoned: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, plan: StepPlan, broadcast: BroadcastPayload | None = None) -> StepReport:
        self._poisoned |= {
            scheduled.request_id
            for scheduled in plan.requests
            if scheduled.plan.start == 0 and POISON_TOKEN in scheduled.plan.canvas
        }
        poisoned = [scheduled for scheduled in plan.requests if scheduled.request_id in self._poisoned]
        if self._before_broadcast:
            fails = any(scheduled.source_rank == 0 and self._is_staged(scheduled) for scheduled in poisoned)
        else:
            fails = any(scheduled.branch_indices for scheduled in poisoned)
        if fails:
            time.sleep(self._hang_s)
            raise self._error
        return self._runner.execute(plan, broadcast)

    def _is_staged(self, scheduled: ScheduledRequest) -> bool:
        return not bool(self._runner.payload_to_commit(scheduled).isnan().any())


class FaultyRunnerFactory:
    """Makes faulty runners; picklable."""

    def __init__(
        self,
        error: Exception = RuntimeError("injected fault"),  # noqa: B008 - never changed
        hang_s: float = 0.0,
        before_broadcast: bool = False,
    ) -> None:
        self._error = error
        self._hang_s = hang_s
        self._before_broadcast = before_broadcast

    def __call__(self, config: Config, weights: Weights | None, tp_group: TensorParallelGroup) -> Any:
        runner = default_runner(config, weights, tp_group)
        return FaultyRunner(runner, self._error, self._hang_s, self._before_broadcast)


class LoadFaultFactory:
    """Makes runners as they are, and fails to while a file exists; picklable."""

    def __init__(self, switch: Path) -> None:
        self._switch = switch

    def __call__(
        self, config: Config, weights: Weights | None, tp_group: TensorParallelGroup
    ) -> BranchRunner:
        if self._switch.exists():
            raise RuntimeError("injected fault while loading")
        return default_runner(config, weights, tp_group)


def nan_runner(config: Config, weights: Weights | None, tp_group: TensorParallelGroup) -> BranchRunner:
    """A runner factory: the model embeds the poison as NaN, so all positions that attend to it become NaN."""
    runner = default_runner(config, weights, tp_group)

    def embed_nan(module: torch.nn.Module, inputs: tuple[Tensor], rows: Tensor) -> Tensor:
        return rows.masked_fill((inputs[0] == POISON_TOKEN)[:, None], torch.nan)

    runner.model.embed.register_forward_hook(embed_nan)
    return runner
