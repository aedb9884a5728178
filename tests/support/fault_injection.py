"""Signals that workers send to themselves at a given point of their work: real deaths, exactly timed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from actors.branch_worker import default_runner
from lopa_ray.config.config import Config
from lopa_ray.execution.runner import BranchRunner, BroadcastPayload
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import StepPlan, StepReport

POINTS = ("load", "adopt", "export", "join", "step", "source", "receiver", "forward", "answer")
"""While it loads its model; takes over slots; hands them to another; enters an epoch; begins a step; sends
K/V; waits for K/V; in the middle of the forward; when it has all reports of a step."""


@dataclass(frozen=True)
class FaultInjection:
    """Signals that wait in a folder. Whoever comes first to a point takes the one that waits there."""

    folder: Path

    def lay(self, point: str, number: int = 1, kind: signal.Signals = signal.SIGKILL) -> None:
        """Have as many workers meet that end."""
        assert point in POINTS
        for _ in range(number):
            (self.folder / f"{point}.{kind.value}.{uuid.uuid4().hex}").touch()

    def meet(self, point: str) -> None:
        """Called by a worker that is at that point."""
        for fate in self.folder.glob(f"{point}.*"):
            met = self.folder / f"met.{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):  # somebody else was faster
                fate.rename(met)
                met.write_text(str(time.time()))
                os.kill(os.getpid(), signal.Signals(int(fate.name.split(".")[1])))

    @property
    def waiting(self) -> bool:
        """A signal is not taken yet."""
        return any(not path.name.startswith("met") for path in self.folder.iterdir())

    def taken(self) -> dict[int, float]:
        """Process → time (as `time.time`) of all who have met theirs so far."""
        met = [path for path in self.folder.glob("met.*") if path.read_text()]
        return {int(path.name.split(".")[1]): float(path.read_text()) for path in met}

    def __call__(self, config: Config, weights: Weights | None, parallel: TensorParallelGroup) -> Any:
        """A runner that comes by; as a worker's runner factory."""
        self.meet("load")
        return DoomedRunner(default_runner(config, weights, parallel), self)


class DoomedRunner:
    """Works as a runner does, and comes by all points."""

    def __init__(self, runner: BranchRunner, fates: FaultInjection) -> None:
        self._runner = runner
        self._fates = fates
        middle = runner.model.layers[len(runner.model.layers) // 2]
        middle.register_forward_pre_hook(lambda *_: fates.meet("forward"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def import_slots(self, *arguments: Any) -> None:
        self._runner.import_slots(*arguments)
        self._fates.meet("adopt")

    def export_slots(self, *arguments: Any) -> Any:
        self._fates.meet("export")
        return self._runner.export_slots(*arguments)

    def reconcile(self, *arguments: Any) -> Any:
        self._fates.meet("join")
        return self._runner.reconcile(*arguments)

    def execute(self, plan: StepPlan, broadcast: BroadcastPayload | None = None) -> StepReport:
        def broadcast_or_die(source: int, payload: Tensor) -> None:
            # Whoever has nothing to send holds NaN.
            self._fates.meet("receiver" if bool(payload.isnan().any()) else "source")
            assert broadcast is not None
            broadcast(source, payload)

        self._fates.meet("step")
        report = self._runner.execute(plan, broadcast_or_die)
        self._fates.meet("answer")
        return report
