"""BranchWorker: a branch slot of the group, or a shard of one. One runner, and its place among the others.

A plain class; `BranchPool` wraps it in an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import ray
import torch
from torch import Tensor

from actors.elastic_group import Rendezvous
from actors.kv_transfer import CollectiveTransfer, KVTransfer, ObjectStoreTransfer
from actors.step_thread import StepAddress, StepThread
from actors.tensor_parallel_group import RayTensorParallelGroup
from actors.weight_chunks import WeightChunk, from_chunks, to_chunks
from lopa_ray.errors import ProtocolError
from lopa_ray.execution.kv_cache import SlotChecksum, SlotState, payload_to_bytes
from lopa_ray.execution.model_files import download_weights
from lopa_ray.execution.model_loader import (
    ModelSpec,
    build_runner,
    load_weights,
    resolve_auto,
)
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.warm_up import warm_up
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.report import StepReport
from lopa_ray.protocol.vocabulary import Vocabulary

RunnerFactory: TypeAlias = Callable[[ModelSpec, Weights | None, TensorParallelGroup], BranchRunner]
"""Makes a worker's runner, of weights that are on its node already or, with None, of those that it reads."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says once its model is loaded."""

    vocabulary: Vocabulary
    position_bytes: int
    """Bytes of K/V per cached position."""
    dtype: str
    """`model.dtype`, or what auto stands for in the worker's group."""


class BranchWorker:
    """Evaluates its share of each step; rejects whatever belongs to an older epoch."""

    def __init__(
        self,
        spec: ModelSpec,
        runner_factory: RunnerFactory = build_runner,
        *,
        uses_store: bool,
        shard: int = 0,
    ) -> None:
        """Nothing that can fail: an actor's constructor cannot say why it did. See `load`."""
        self._spec = spec
        self._runner_factory = runner_factory
        self._transfer: KVTransfer = ObjectStoreTransfer() if uses_store else CollectiveTransfer()
        self._tp_group = RayTensorParallelGroup(shard, spec.config.group.tensor_parallel_size)
        self._epoch = 0
        self._steps: StepThread | None = None

    def ping(self) -> None:
        """Return once the worker is placed, and while it is alive."""

    def node_and_weight_bytes(self) -> tuple[str, int]:
        """The id of the node that the worker is on, and the size of the weights in bytes."""
        return ray.get_runtime_context().get_node_id(), self._spec.weight_bytes

    def download_weights(self) -> None:
        """Have the checkpoint's files on this node. Raises CheckpointError."""
        download_weights(self._spec.config.model)

    def read_weights(self) -> Iterator[WeightChunk]:
        """Read the weights for all workers on this node. Raises CheckpointError."""
        torch.set_num_threads(self._spec.config.group.threads_per_worker)
        yield from to_chunks(load_weights(self._spec, "cpu"))

    def resolve_auto(self) -> ModelSpec:
        """The model with what auto stands for here. Raises SettingsError."""
        torch.set_num_threads(self._spec.config.group.threads_per_worker)
        return resolve_auto(self._spec)

    def use(self, spec: ModelSpec) -> None:
        """Load this model, whatever auto would stand for here: all workers of a group round alike."""
        self._spec = spec

    def load_model(self, chunks: Sequence[Any] | None) -> WorkerInfo:
        """Load the model, from the chunks (object references) that `read_weights` gave if there are any.

        Raises CheckpointError or SettingsError.
        """
        torch.set_num_threads(self._spec.config.group.threads_per_worker)
        weights = None if chunks is None else from_chunks(chunks)
        self._runner = self._runner_factory(self._spec, weights, self._tp_group)
        position_bytes = self._runner.position_bytes * self._tp_group.size
        return WorkerInfo(self._runner.vocabulary, position_bytes, self._spec.config.model.dtype)

    def warm_up(self, shards: Rendezvous) -> None:
        """Compile the layers together with the other shards, in an epoch of its own. Raises TransferError."""
        self._tp_group.join(shards)
        warm_up(self._runner)
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
            self._steps = StepThread(steps, self.execute, workers.timeout_s)
        self._epoch = workers.epoch
        self._transfer.join(workers)
        self._tp_group.join(shards)
        return self._runner.reconcile(request_by_slot, pending)

    def leave_groups(self) -> None:
        """Drop all connections: peers that wait for this one in a collective are released."""
        self._transfer.leave()
        self._tp_group.leave()

    def export_slots(self, request_by_slot: Mapping[int, int]) -> list[SlotState]:
        """See `BranchRunner.export_slots`."""
        return self._runner.export_slots(request_by_slot)

    def import_slots(self, states: Sequence[SlotState]) -> None:
        """See `BranchRunner.import_slots`."""
        self._runner.import_slots(states)

    def restage(self, plan: StepPlan) -> None:
        """Stage again what was lost with another worker, by the same forward. Raises as `execute`."""
        self.execute(plan)

    def execute(self, plan: StepPlan, *payloads: npt.NDArray[np.uint8]) -> StepReport:
        """Commit, forward, score; see `BranchRunner.execute`. `payloads`: what `export_payload` gave, in order.

        All shards have the same reports; the first one's go to the master.
        Raises ProtocolError for a plan of another epoch than the one joined last.
        """
        if plan.epoch != self._epoch:
            raise ProtocolError(f"got a plan of epoch {plan.epoch}; this worker is in epoch {self._epoch}")
        if isinstance(self._transfer, ObjectStoreTransfer):
            self._transfer.set_exported(payloads)
        try:
            report = self._runner.execute(plan, self._fill_from)
        except BaseException:
            # Peers may be waiting for this one: dropped connections release them.
            self.leave_groups()
            raise
        if self._tp_group.rank == 0:
            return report
        return StepReport.without_branches(report.epoch, report.step, report.commit_s, report.forward_s)

    def _fill_from(self, source: int, payload: Tensor) -> None:
        """K/V of the winner; on return all shards of this worker have theirs, so that all commit them or none does."""
        self._transfer.broadcast(source, payload)
        self._tp_group.barrier(payload.device)

    def export_payload(self, scheduled: ScheduledRequest) -> npt.NDArray[np.uint8]:
        """The payload that the commit has this worker send, as raw bytes uint8 [bytes]."""
        return payload_to_bytes(self._runner.payload_to_commit(scheduled))

    def checksums(self) -> list[SlotChecksum]:
        """Per slot; see `BranchRunner.checksums`."""
        return self._runner.checksums()
