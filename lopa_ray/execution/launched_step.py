"""LaunchedStep: a step that the device computes, while its host is free to begin another step, and its times."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from lopa_ray.execution.rows_to_score import RowsToScore
from lopa_ray.kernels.row_scores import SCORE_COLUMNS
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport

BOUNDARIES = 5
"""Begin and end of gathering the K/V to send, then begin and end of receiving and writing K/V, then the end of all that
the device computes."""


def has_events(device: torch.device) -> bool:
    """Whether the device is the accelerator of this process: it computes while the host goes on, and events tell when
    it is done."""
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type == device.type


class StepTimes:
    """The times of one step, between boundaries: by the host's clock, or on an accelerator, whose work the host only
    enqueues, by events. An accelerator reaches the first boundary when it has finished the step before, which may still
    be under way when the host begins this step. Events are read after a step's only wait, and cost no wait of their
    own."""

    def __init__(self, device: torch.device) -> None:
        self.has_events = has_events(device)
        # Several steps may be in flight, so each has events of its own.
        self._events = [torch.Event(device, enable_timing=True) for _ in range(BOUNDARIES * self.has_events)]
        self._times: list[float] = []
        self._resumed: float | None = None
        self.mark()

    def mark(self) -> None:
        if self._events:
            self._events[len(self._times)].record()
        self._times.append(time.perf_counter())

    def wait(self) -> None:
        """Wait until the device has reached the last boundary. Since then the host may have begun another step; that
        time is not this step's."""
        self._resumed = time.perf_counter()
        if self._events:
            self._events[-1].synchronize()

    def seconds(self) -> tuple[float, float]:
        """Seconds of the step's commits, and of the rest of it until now. All boundaries are marked. Where an
        accelerator has not reached the last one, as in a step without a branch, they are times of enqueueing."""
        if self._events and self._events[-1].query():
            spans = [1e-3 * begin.elapsed_time(end) for begin, end in pairwise(self._events)]
        else:
            spans = [end - begin for begin, end in pairwise(self._times)]
            if self._resumed is not None:
                spans.append(time.perf_counter() - self._resumed)
        gathering, packing, writing, *rest = spans
        return gathering + writing, packing + sum(rest)


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedStep:
    """A step from `BranchRunner.launch` until its report."""

    plan: StepPlan
    times: StepTimes
    tp_group: TensorParallelGroup
    rows_to_score: RowsToScore | None = None
    """The rows; None: the worker has no branch in the step."""
    scores: Tensor | None = None
    """fp64, flat [values], on the host; on an accelerator they may still be on their way there."""

    @torch.inference_mode()
    def report(self) -> StepReport:
        """Wait for the scores and return the worker's answer. To be called once, in the order in which a runner's steps
        were launched. Raises TransferError if another shard of the model is lost, and what torch raises if the device
        fails."""
        epoch, step = self.plan.epoch, self.plan.step
        if self.rows_to_score is None or self.scores is None:
            commit_s, _ = self.times.seconds()
            return StepReport.without_branches(epoch, step, commit_s)
        self.tp_group.wait()
        self.times.wait()
        branches, scored = self.rows_to_score.report(self.scores.numpy(), SCORE_COLUMNS)
        return StepReport(epoch, step, branches, scored, *self.times.seconds())
