"""BranchWorker: a branch slot of the group, or a shard of one. One runner, and its place among the others.

A plain class; `BranchPool` wraps it in an actor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import ray
import torch
from torch import Tensor

from actors.elastic_group import Rendezvous
from actors.kv_transfer import CollectiveTransfer, KVTransfer, ObjectStoreTransfer
from actors.tensor_parallel_group import RayTensorParallelGroup
from actors.weight_chunks import WeightChunk, pack, unpack
from lopa_ray.config.config import Config
from lopa_ray.errors import ProtocolError
from lopa_ray.execution.kv_cache import SlotChecksum, SlotState, payload_to_bytes
from lopa_ray.execution.model_loader import build_runner, load_weights, model_weight_bytes
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan, StepReport
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.tokenizer import Tokenizer

RunnerFactory: TypeAlias = Callable[[Config, Weights | None, TensorParallelGroup], BranchRunner]
"""Makes a worker's runner, of weights that are on its node already or, with None, of those that it reads."""


def default_runner(config: Config, weights: Weights | None, parallel: TensorParallelGroup) -> BranchRunner:
    """The runner that a configuration asks for."""
    return build_runner(config, Tokenizer.from_pretrained(config.model.folder), weights, parallel)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says once its model is loaded."""

    vocabulary: Vocabulary
    position_bytes: int
    """Bytes of K/V per cached position."""


class BranchWorker:
    """Evaluates its share of each step; rejects whatever belongs to an older epoch."""

    def __init__(
        self,
        config: Config,
        runner_factory: RunnerFactory = default_runner,
        *,
        uses_store: bool,
        shard: int = 0,
    ) -> None:
        """Nothing that can fail: an actor's constructor cannot say why it did. See `load`."""
        self._config = config
        self._runner_factory = runner_factory
        self._transfer: KVTransfer = ObjectStoreTransfer() if uses_store else CollectiveTransfer()
        self._shards = RayTensorParallelGroup(shard, config.group.tensor_parallel_size)
        self._epoch = 0

    def ping(self) -> None:
        """Answers once the worker is placed, and while it is alive."""

    def arrive(self) -> tuple[str, int]:
        """The id of the node that it is on, and the size of the weights in bytes. Raises CheckpointError."""
        return ray.get_runtime_context().get_node_id(), model_weight_bytes(self._config)

    def publish(self) -> Iterator[WeightChunk]:
        """Read the weights for all workers on this node. Raises CheckpointError."""
        torch.set_num_threads(self._config.group.threads_per_worker)
        yield from pack(load_weights(self._config, "cpu"))

    def load(self, copy: Sequence[Any] | None) -> WorkerInfo:
        """Load the model, from the parcels (object references) that `publish` gave if there are any.

        Raises CheckpointError or SettingsError.
        """
        torch.set_num_threads(self._config.group.threads_per_worker)
        weights = None if copy is None else unpack(copy)
        self._runner = self._runner_factory(self._config, weights, self._shards)
        return WorkerInfo(self._runner.vocabulary, self._runner.position_bytes * self._shards.size)

    def join(
        self,
        workers: Rendezvous,
        shards: Rendezvous,
        owners: Mapping[int, int],
        pending: Sequence[ScheduledRequest],
    ) -> tuple[bool, ...]:
        """Enter an epoch among the workers and among the shards of this one; see `BranchRunner.reconcile`.

        Raises TransferError if a peer does not.
        """
        self._epoch = workers.epoch
        self._transfer.join(workers)
        self._shards.join(shards)
        return self._runner.reconcile(owners, pending)

    def leave(self) -> None:
        """Drop all connections: peers that wait for this one in a collective are released."""
        self._transfer.leave()
        self._shards.leave()

    def export_slots(self, owners: Mapping[int, int]) -> list[SlotState]:
        """See `BranchRunner.export_slots`."""
        return self._runner.export_slots(owners)

    def adopt(self, states: Sequence[SlotState]) -> None:
        """See `BranchRunner.import_slots`."""
        self._runner.import_slots(states)

    def restage(self, plan: StepPlan) -> None:
        """Stage again what was lost with another worker, by the same forward. Raises as `step`."""
        self.step(plan)

    def step(self, plan: StepPlan, *payloads: npt.NDArray[np.uint8]) -> StepReport:
        """Commit, forward, score; see `BranchRunner.execute`. `payloads`: what `export` gave, in order.

        All shards have the same reports; the first one's go to the master.
        Raises ProtocolError for a plan of another epoch than the one joined last.
        """
        if plan.epoch != self._epoch:
            raise ProtocolError(f"got a plan of epoch {plan.epoch}; this worker is in epoch {self._epoch}")
        if isinstance(self._transfer, ObjectStoreTransfer):
            self._transfer.receive(payloads)
        try:
            report = self._runner.execute(plan, self._exchange)
        except BaseException:
            # Peers may be waiting for this one: dropped connections release them.
            self.leave()
            raise
        return report if self._shards.rank == 0 else replace(report, reports=())

    def _exchange(self, source: int, payload: Tensor) -> None:
        """K/V of the winner; on return all shards of this worker have theirs, so that all commit them or none does."""
        self._transfer.exchange(source, payload)
        self._shards.meet(payload.device)

    def export(self, work: ScheduledRequest) -> npt.NDArray[np.uint8]:
        """Raw bytes of the K/V that the work's commit orders this worker to send."""
        return payload_to_bytes(self._runner.payload_to_commit(work))

    def checksums(self) -> list[SlotChecksum]:
        """Per slot; see `BranchRunner.checksums`."""
        return self._runner.checksums()
