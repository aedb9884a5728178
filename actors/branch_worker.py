"""BranchWorker: a branch slot of the group. One runner, and its place among the others.

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

from actors.elastic_group import Membership
from actors.kv_transfer import CollectiveTransfer, KVTransfer, ObjectStoreTransfer
from actors.parcels import Parcel, pack, unpack
from lopa_ray.cache import SlotChecksum, SlotState, to_bytes
from lopa_ray.config import Config
from lopa_ray.errors import ProtocolError
from lopa_ray.local import load_runner, size_of_weights, weights_of
from lopa_ray.model.weights import Weights
from lopa_ray.plan import StepPlan, StepReport, Work
from lopa_ray.runner import BranchRunner
from lopa_ray.session import Vocabulary
from lopa_ray.tokenizer import Tokenizer

RunnerFactory: TypeAlias = Callable[[Config, Weights | None], BranchRunner]
"""Makes a worker's runner, of weights that are on its node already or, with None, of those that it reads."""


def default_runner(config: Config, weights: Weights | None) -> BranchRunner:
    """The runner that a configuration asks for."""
    return load_runner(config, Tokenizer.from_pretrained(config.model.folder), weights)


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker says once its model is loaded."""

    vocabulary: Vocabulary
    parameters: int
    position_bytes: int
    """Bytes of K/V per cached position."""


class BranchWorker:
    """Evaluates its share of each step; rejects whatever belongs to an older epoch."""

    def __init__(
        self, config: Config, runner_factory: RunnerFactory = default_runner, *, uses_store: bool
    ) -> None:
        """Nothing that can fail: an actor's constructor cannot say why it did. See `load`."""
        self._config = config
        self._runner_factory = runner_factory
        self._transfer: KVTransfer = ObjectStoreTransfer() if uses_store else CollectiveTransfer()
        self._epoch = 0

    def ping(self) -> None:
        """Answers once the worker is placed, and while it is alive."""

    def arrive(self) -> tuple[str, int]:
        """The id of the node that it is on, and the size of the weights in bytes. Raises CheckpointError."""
        return ray.get_runtime_context().get_node_id(), size_of_weights(self._config)

    def publish(self) -> Iterator[Parcel]:
        """Read the weights for all workers on this node. Raises CheckpointError."""
        torch.set_num_threads(self._config.group.threads_per_worker)
        yield from pack(weights_of(self._config, "cpu"))

    def load(self, copy: Sequence[Any] | None) -> WorkerInfo:
        """Load the model, from the parcels (object references) that `publish` gave if there are any.

        Raises CheckpointError or SettingsError.
        """
        torch.set_num_threads(self._config.group.threads_per_worker)
        self._runner = self._runner_factory(self._config, None if copy is None else unpack(copy))
        parameters = sum(parameter.numel() for parameter in self._runner.model.parameters())
        return WorkerInfo(self._runner.vocabulary, parameters, self._runner.position_bytes)

    def join(
        self, membership: Membership, owners: Mapping[int, int], pending: Sequence[Work]
    ) -> tuple[bool, ...]:
        """Enter an epoch of the group; see `BranchRunner.settle`. Raises TransferError if a peer does not."""
        self._epoch = membership.epoch
        self._transfer.join(membership)
        return self._runner.settle(owners, pending)

    def export_slots(self, owners: Mapping[int, int]) -> list[SlotState]:
        """See `BranchRunner.export`."""
        return self._runner.export(owners)

    def adopt(self, states: Sequence[SlotState]) -> None:
        """See `BranchRunner.adopt`."""
        self._runner.adopt(states)

    def restage(self, plan: StepPlan) -> None:
        """Stage again what was lost with another worker, by the same forward. Raises as `step`."""
        self.step(plan)

    def step(self, plan: StepPlan, *payloads: npt.NDArray[np.uint8]) -> StepReport:
        """Commit, forward, score; see `BranchRunner.step`. `payloads`: what `export` gave, in order.

        Raises ProtocolError for a plan of another epoch than the one joined last.
        """
        if plan.epoch != self._epoch:
            raise ProtocolError(f"got a plan of epoch {plan.epoch}; this worker is in epoch {self._epoch}")
        if isinstance(self._transfer, ObjectStoreTransfer):
            self._transfer.receive(payloads)
        try:
            return self._runner.step(plan, self._transfer.exchange)
        except BaseException:
            # Peers may be waiting for this worker in a broadcast: dropped connections release them.
            self._transfer.leave()
            raise

    def export(self, work: Work) -> npt.NDArray[np.uint8]:
        """Raw bytes of the K/V that the work's commit orders this worker to send."""
        return to_bytes(self._runner.payload(work))

    def checksums(self) -> list[SlotChecksum]:
        """Per slot; see `BranchRunner.checksums`."""
        return self._runner.checksums()
