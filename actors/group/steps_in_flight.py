"""StepsInFlight: the steps that a master has sent to its workers, and whose reports it has not processed yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.calls.rpc import RPCBatch
from actors.group.branch_pool import BranchPool
from lopa_ray.errors import LopaError, TransferError, WorkerLostError
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport, StepTiming


@dataclass(slots=True)
class SentStep:
    """A step whose plans the workers have, with the seconds of the phases that have ended."""

    batch: RPCBatch
    branches: int
    plan_s: float
    scatter_s: float
    sent_at: float  # when scatter ended, as `time.perf_counter`
    gather_s: float = 0.0  # from sending the plans to the last report, other work of the master included

    def timing(self, reports: Sequence[StepReport], select_s: float) -> StepTiming | None:
        """The step, with what the workers report of their own parts. None for a step without workers."""
        if not reports:
            return None
        slowest = max(report.commit_s + report.forward_s for report in reports)
        return StepTiming(
            plan=self.plan_s,
            scatter=self.scatter_s,
            commit=max(report.commit_s for report in reports),
            forward=max(report.forward_s for report in reports),
            gather=max(0.0, self.gather_s - slowest),
            select=select_s,
        )


class StepsInFlight:
    """Workers compute them in the order in which they were sent."""

    def __init__(self) -> None:
        self._sent: deque[SentStep] = deque()  # the oldest first

    def __bool__(self) -> bool:
        return bool(self._sent)

    @property
    def branches(self) -> int:
        return sum(step.branches for step in self._sent)

    def send(self, pool: BranchPool, plan: Callable[[int], list[StepPlan]]) -> None:
        """Plan a step for the workers of the pool, and send it unless it is empty."""
        began = time.perf_counter()
        plans = plan(len(pool))
        if not plans:
            return
        planned = time.perf_counter()
        batch = pool.scatter(plans)
        sent = time.perf_counter()
        branches = sum(len(request.branch_indices) for plan in plans for request in plan.requests)
        self._sent.append(SentStep(batch, branches, planned - began, sent - planned, sent))

    async def gather(self, pool: BranchPool) -> tuple[list[StepReport], SentStep]:
        """Wait for the reports of the oldest step. It is in flight still if that raises; see `BranchPool.gather`."""
        oldest = self._sent[0]
        reports = await pool.gather(oldest.batch)
        oldest.gather_s = time.perf_counter() - oldest.sent_at
        self._sent.popleft()
        return reports, oldest

    async def drop(self, pool: BranchPool, error: Exception) -> Exception:
        """Wait, after an error, until no worker is busy with any of the steps, and give them up. Returns the cause."""
        causes = [error]
        while self._sent:
            try:
                await pool.drop(self._sent.popleft().batch)
            except LopaError as other:
                causes.append(other)
        # A TransferError may follow from the error of another worker, in another step; a loss comes before all others.
        return min(
            causes,
            key=lambda cause: (not isinstance(cause, WorkerLostError), isinstance(cause, TransferError)),
        )
