"""BranchWorker: a branch slot of the group, or a shard of one. One runner, and its place among the others.

A plain class; `WorkerFactory` wraps it in an actor. `prepare` imports torch, and all that needs it: masters have this
module too, and start without them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import ray

from actors.kv_transfer import CollectiveTransfer, KVTransfer
from actors.rendezvous import Rendezvous
from actors.step_connection import OverlappingStepThread, StepAddress, StepThread
from actors.worker_handle import RunnerFactory, WorkerInfo
from lopa_ray.errors import ProtocolError
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.slot_checksum import SlotChecksum
from lopa_ray.protocol.step_report import StepReport

if TYPE_CHECKING:
    from actors.worker_model import WeightChunk
    from lopa_ray.execution.kv_cache import SlotState
    from lopa_ray.execution.launched_step import LaunchedStep


logger = logging.getLogger("lopa.group")


HEALTH = "health"
"""The concurrency group of `ping`: it is answered in a thread of its own."""


class BranchWorker:
    """Evaluates its share of each step. Rejects plans of an older epoch."""

    def __init__(
        self,
        spec: ModelSpec,
        runner_factory: RunnerFactory | None = None,
        transfer: type[KVTransfer] = CollectiveTransfer,
        shard: int = 0,
        name: str = "worker",
    ) -> None:
        """`name`: what Ray's dashboard and logs call it.

        Does nothing that can fail or take long: Ray does not report why an actor's constructor failed, and answers no
        `ping` before its end. See `prepare`."""
        sharded = spec.config.group.tensor_parallel_size > 1
        self._name = f"{name}/shard-{shard}" if sharded else name
        self._made_of = spec, runner_factory, transfer, shard
        # Shards wait for all collectives together, so the report of a step would wait for the next one.
        self._overlaps = bool(spec.config.overlap) and not sharded
        self._epoch = 0
        self._steps: StepThread | None = None

    def __repr__(self) -> str:
        return self._name

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Return once the worker is placed, and while it is alive, whatever else it does."""

    def prepare(self) -> None:
        """Import all that the worker needs. To be called before all other methods but `ping`."""
        from actors.tensor_parallel_group import RayTensorParallelGroup
        from actors.worker_model import WorkerModel

        spec, runner_factory, transfer, shard = self._made_of
        self._model = WorkerModel(spec, runner_factory)
        self._transfer = transfer()
        self._tp_group = RayTensorParallelGroup(shard, spec.config.group.tensor_parallel_size)

    def node_and_weight_bytes(self) -> tuple[str, int]:
        """The id of the node that the worker is on, and the size of the weights in bytes."""
        return ray.get_runtime_context().get_node_id(), self._model.spec.weight_bytes

    def download_weights(self) -> None:
        """See `WorkerModel.download`."""
        self._model.download()

    def read_weights(self) -> Iterator[WeightChunk]:
        """See `WorkerModel.read_weights`."""
        yield from self._model.read_weights()

    def resolve_auto(self) -> ModelSpec:
        """See `WorkerModel.resolve_auto`."""
        return self._model.resolve_auto()

    def use(self, spec: ModelSpec) -> None:
        """Load this model, in which no setting is auto any more, so that all workers of a group round alike."""
        self._model.spec = spec

    def load_model(self, chunks: Sequence[Any] | None) -> WorkerInfo:
        """Load the model, from the chunks (object references) that `read_weights` gave if there are any.

        Raises CheckpointError or SettingsError.
        """
        self._runner = self._model.build(chunks, self._tp_group)
        return WorkerInfo(self._runner.vocabulary, self._runner.position_bytes * self._tp_group.size)

    def warm_up(self, shards: Rendezvous) -> None:
        """Compile the layers together with the other shards, in an epoch of its own. Raises TransferError."""
        self._tp_group.join(shards)
        self._model.warm_up(self._runner)
        self._tp_group.leave()

    def join_epoch(
        self,
        workers: Rendezvous,
        shards: Rendezvous,
        steps: StepAddress | None,
        request_by_slot: Mapping[int, int],
        pending: Sequence[ScheduledRequest],
    ) -> tuple[bool, ...]:
        """Enter an epoch among the workers and among the shards of this one; see `BranchRunner.reconcile`.

        `steps`: where plans come from; None: they are calls of `execute`. Raises TransferError if a peer does not
        enter, or the master is not reached.
        """
        if steps is not None and self._steps is None:
            if self._overlaps:
                self._steps = OverlappingStepThread(steps, self.launch, workers.timeout_s)
            else:
                self._steps = StepThread(steps, self.execute, workers.timeout_s)
        self._epoch = workers.epoch
        with self._guarded():
            self._transfer.join(workers)
            self._tp_group.join(shards)
            return self._runner.reconcile(request_by_slot, pending)

    def leave_groups(self) -> None:
        """Drop all connections: peers that wait for this one in a collective are released."""
        self._transfer.leave()
        self._tp_group.leave()

    def export_slots(self, request_by_slot: Mapping[int, int]) -> list[SlotState]:
        """See `BranchRunner.export_slots`."""
        with self._guarded():
            return self._runner.export_slots(request_by_slot)

    def import_slots(self, states: Sequence[SlotState]) -> None:
        """See `BranchRunner.import_slots`."""
        with self._guarded():
            self._runner.import_slots(states)

    def restage(self, plan: StepPlan) -> None:
        """Stage K/V again that was lost with another worker, by the same forward. Raises as `execute`."""
        self.execute(plan)

    def execute(self, plan: StepPlan, *payloads: npt.NDArray[np.uint8]) -> StepReport:
        """Commit, forward, score; see `BranchRunner.execute`. `payloads`: see `KVTransfer.set_exported`.

        All shards have the same reports; the first one's go to the master.
        Raises ProtocolError for a plan of another epoch than the one joined last.
        """
        return self.launch(plan, *payloads)()

    def launch(self, plan: StepPlan, *payloads: npt.NDArray[np.uint8]) -> Callable[[], StepReport]:
        """Begin a step; returns what waits for its report. See `execute`, and `BranchRunner.launch`."""
        if plan.epoch != self._epoch:
            raise ProtocolError(f"got a plan of epoch {plan.epoch}; this worker is in epoch {self._epoch}")
        self._transfer.set_exported(payloads)
        with self._guarded():
            launched = self._runner.launch(plan, self._transfer)
        return partial(self._report, launched)

    def _report(self, launched: LaunchedStep) -> StepReport:
        with self._guarded():
            report = launched.report()
        if self._tp_group.rank == 0:
            return report
        return StepReport.without_branches(report.epoch, report.step, report.commit_s, report.forward_s)

    def export_payload(self, requests: Sequence[ScheduledRequest]) -> npt.NDArray[np.uint8]:
        """See `BranchRunner.export_payload`."""
        with self._guarded():
            return self._runner.export_payload(requests)

    def checksums(self) -> list[SlotChecksum]:
        """Per slot; see `BranchRunner.checksums`."""
        with self._guarded():
            return self._runner.checksums()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Around all that uses the device. After an error it drops all connections, since peers may be waiting for this
        worker, and ends this process if the device computes no more: the master then replaces the worker.
        """
        try:
            yield
        except BaseException as error:
            self.leave_groups()
            self._end_without_device(error)
            raise

    def _end_without_device(self, error: BaseException) -> None:
        try:
            self._runner.check_device()
        except Exception as failure:
            # No type of error tells: Triton raises RuntimeError, torch an error of its own, NCCL's is a TransferError.
            logger.critical(
                f"this worker ends, because its device computes no more ({failure}), after: {error!r}"
            )
            logging.shutdown()
            os._exit(1)
