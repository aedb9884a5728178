"""Faults that workers trigger at a given point of their work: they send a signal to themselves, exactly timed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lopa_ray.execution import model_loader
from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.model_loader import build_model, build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.slots import PayloadTransfer
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.protocol.step_report import StepReport

POINTS = (
    "load", "import_slots", "export_slots", "join", "step", "source", "receiver", "forward", "answer", "stage",
    "commit", "committed",
)  # fmt: skip
"""While it loads its model; takes over slots; hands them to another; enters an epoch; begins a step; sends
K/V; waits for K/V; in the middle of the forward; when it has all reports of a step; makes a model of other
weights; before and after it begins to compute with that."""


@dataclass(frozen=True)
class FaultInjection:
    """Faults that are pending in a folder, a file each. The first worker at a fault's point triggers it."""

    folder: Path

    def inject(self, point: str, workers: int = 1, sig: signal.Signals = signal.SIGKILL) -> None:
        """Have the next workers at that point send the signal to themselves, as many as `workers`."""
        assert point in POINTS
        for _ in range(workers):
            (self.folder / f"{point}.{sig.value}.{uuid.uuid4().hex}").touch()

    def trigger(self, point: str) -> None:
        """Called by a worker that is at that point."""
        for fault in self.folder.glob(f"{point}.*"):
            triggered = self.folder / f"triggered.{os.getpid()}"
            with contextlib.suppress(FileNotFoundError):  # another worker was faster
                fault.rename(triggered)
                triggered.write_text(str(time.time()))
                os.kill(os.getpid(), signal.Signals(int(fault.name.split(".")[1])))

    @property
    def pending(self) -> bool:
        """A fault is not triggered yet."""
        return any(not path.name.startswith("triggered") for path in self.folder.iterdir())

    def triggered(self) -> dict[int, float]:
        """Process → time (as `time.time`) of each fault that was triggered so far."""
        paths = [path for path in self.folder.glob("triggered.*") if path.read_text()]
        return {int(path.name.split(".")[1]): float(path.read_text()) for path in paths}

    def __call__(self, spec: ModelSpec, weights: Weights | None, tp_group: TensorParallelGroup) -> Any:
        """A worker's runner factory."""
        self.trigger("load")
        model_loader.build_model = self._stage  # of this worker's process
        return FaultInjectingRunner(build_runner(spec, weights, tp_group), self)

    def _stage(self, *arguments: Any) -> Any:
        self.trigger("stage")
        return build_model(*arguments)


class FaultInjectingRunner:
    """Works as a `BranchRunner` does, and triggers the faults of all points."""

    def __init__(self, runner: BranchRunner, faults: FaultInjection) -> None:
        self._runner = runner
        self._faults = faults
        middle = runner.model.layers[len(runner.model.layers) // 2]
        middle.register_forward_pre_hook(lambda *_: faults.trigger("forward"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def import_slots(self, *arguments: Any) -> None:
        self._runner.import_slots(*arguments)
        self._faults.trigger("import_slots")

    def export_slots(self, *arguments: Any) -> Any:
        self._faults.trigger("export_slots")
        return self._runner.export_slots(*arguments)

    def reconcile(self, *arguments: Any) -> Any:
        self._faults.trigger("join")
        return self._runner.reconcile(*arguments)

    def use_model(self, model: MaskPredictor) -> None:
        self._faults.trigger("commit")
        self._runner.use_model(model)
        self._faults.trigger("committed")

    def launch(self, plan: StepPlan, transfer: PayloadTransfer | None = None) -> FaultInjectingStep:
        self._faults.trigger("step")
        transfer = transfer and FaultInjectingTransfer(transfer, self._faults)
        return FaultInjectingStep(self._runner.launch(plan, transfer), self._faults)


@dataclass(frozen=True)
class FaultInjectingStep:
    """Triggers the faults of workers that have all reports."""

    launched: LaunchedStep
    faults: FaultInjection

    def report(self) -> StepReport:
        report = self.launched.report()
        self.faults.trigger("answer")
        return report


class FaultInjectingTransfer:
    """Triggers the faults of sources and receivers, and works as the transfer of the worker does."""

    def __init__(self, transfer: PayloadTransfer, faults: FaultInjection) -> None:
        self._transfer = transfer
        self._faults = faults
        self.rank = transfer.rank

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        if self.rank in payloads:
            self._faults.trigger("source")
        if any(source != self.rank for source in payloads):
            self._faults.trigger("receiver")
        self._transfer.broadcast(payloads)
