"""StepsInFlight: the steps that a master has sent to its workers, and whose reports it has not processed yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from actors.branch_pool import BranchPool
from actors.rpc import RPCBatch
from actors.timers import StepTimer
from lopa_ray.errors import LopaError, TransferError, WorkerLostError
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport


@dataclass(frozen=True, slots=True)
class SentStep:
    """A step whose plans the workers have."""

    batch: RPCBatch
    timer: StepTimer
    branches: int


class StepsInFlight:
    """Workers compute them in the order in which they were sent."""

    def __init__(self) -> None:
        self._sent: deque[SentStep] = deque()
        """The oldest first."""

    def __bool__(self) -> bool:
        return bool(self._sent)

    @property
    def branches(self) -> int:
        return sum(step.branches for step in self._sent)

    def send(self, pool: BranchPool, plan: Callable[[int], list[StepPlan]]) -> None:
        """Send the workers what `plan` plans for as many of them, if it plans anything."""
        timer = StepTimer()
        with timer("plan"):
            plans = plan(len(pool))
        if not plans:
            return
        with timer("scatter"):
            batch = pool.scatter(plans)
        branches = sum(len(request.branch_indices) for plan in plans for request in plan.requests)
        self._sent.append(SentStep(batch, timer, branches))

    async def gather(self, pool: BranchPool) -> tuple[list[StepReport], StepTimer]:
        """Wait for the reports of the oldest step. It is in flight still if that raises; see `BranchPool.gather`."""
        oldest = self._sent[0]
        reports = await pool.gather(oldest.batch)
        oldest.timer.answered()
        self._sent.popleft()
        return reports, oldest.timer

    async def drop(self, pool: BranchPool, error: Exception) -> Exception:
        """After an error: wait until no worker is busy with any of the steps, and give them up. Returns the cause,
        which may be in another step: a TransferError may follow from another worker's error, and a loss comes before
        all others."""
        causes = [error]
        while self._sent:
            try:
                await pool.drop(self._sent.popleft().batch)
            except LopaError as other:
                causes.append(other)
        return min(causes, key=_precedence)


def _precedence(error: Exception) -> int:
    if isinstance(error, WorkerLostError):
        return 0
    return 2 if isinstance(error, TransferError) else 1
