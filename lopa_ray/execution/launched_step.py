"""LaunchedStep: a step that the device computes, while its host is free to begin another one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.rows_to_score import RowsToScore
from lopa_ray.execution.step_clock import StepTimes
from lopa_ray.kernels.row_scores import SCORE_COLUMNS
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedStep:
    """A step from `BranchRunner.launch` until its report."""

    plan: StepPlan
    times: StepTimes
    tp_group: TensorParallelGroup
    rows_to_score: RowsToScore | None = None
    """None: the worker has no branch in the step."""
    scores: Tensor | None = None
    """fp64, flat [values], on the host; on an accelerator they may still be on their way there."""

    @torch.inference_mode()
    def report(self) -> StepReport:
        """Wait for the scores and return the worker's answer. To be called once.

        Steps of a runner are to be reported in the order in which they were launched. Raises TransferError if another
        shard of the model is lost, and what torch raises if the device fails.
        """
        epoch, step = self.plan.epoch, self.plan.step
        if self.rows_to_score is None or self.scores is None:
            commit_s, _ = self.times.seconds()
            return StepReport.without_branches(epoch, step, commit_s)
        self.tp_group.wait()
        self.times.wait()
        branches, scored = self.rows_to_score.report(self.scores.numpy(), SCORE_COLUMNS)
        return StepReport(epoch, step, branches, scored, *self.times.seconds())
