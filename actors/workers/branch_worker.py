"""BranchWorker: a branch slot of the group, or a shard of one. One runner, and its place among the others. A plain
class; `WorkerFactory` wraps it in an actor. `prepare` imports torch, and all that needs it: masters have this module
too, and start without them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import ray

from actors.calls.worker_handle import RunnerFactory, WorkerInfo
from actors.steps.step_thread import StepAddress, StepThread
from actors.transfer.rendezvous import Rendezvous
from lopa_ray.errors import ProtocolError
from lopa_ray.execution.device import give_memory_back
from lopa_ray.execution.model_files import download_weights
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.checkpoint.weight_source import WeightSource
from lopa_ray.protocol.forward_costs import ForwardCosts
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.step_report import StepReport

if TYPE_CHECKING:
    from actors.workers.weight_chunks import WeightChunk
    from lopa_ray.execution.launched_step import LaunchedStep
    from lopa_ray.model.mask_predictor import MaskPredictor

logger = logging.getLogger("lopa.group")

HEALTH = "health"  # the concurrency group of `ping`: it is answered in a thread of its own

STAGING = "staging"  # the concurrency group of calls that stage weights, so that steps go on meanwhile


class BranchWorker:
    """Evaluates its share of each step. Rejects plans of an older epoch."""

    def __init__(
        self,
        spec: ModelSpec,
        runner_factory: RunnerFactory | None = None,
        shard: int = 0,
        name: str = "worker",
    ) -> None:
        """Does nothing that can fail or take long: Ray does not report why an actor's constructor failed, and answers
        no `ping` before its end. `name`: for Ray's dashboard and logs."""
        sharded = spec.config.group.tensor_parallel_size > 1
        self._name = f"{name}/shard-{shard}" if sharded else name
        self._spec = spec
        self._runner_factory = runner_factory
        self._shard = shard
        # Shards wait for all collectives together, so the report of a step would wait for the next step.
        self._overlaps = bool(spec.config.overlap) and not sharded
        self._staged: tuple[ModelSpec, MaskPredictor] | None = None
        self._epoch = 0
        self._steps: StepThread | None = None

    def __repr__(self) -> str:
        return self._name

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Return once the worker is placed, and while it is alive, whatever else it does."""

    def prepare(self) -> None:
        """Import the libraries of a worker. Every other method but `ping` needs them."""
        import torch

        from actors.transfer.kv_transfer import TRANSFERS
        from actors.transfer.tensor_parallel_group import RayTensorParallelGroup
        from lopa_ray.execution import model_loader

        group = self._spec.config.group
        torch.set_num_threads(group.threads)
        self._loader = model_loader
        self._transfer = TRANSFERS[self._spec.config.transfer]()
        self._tp_group = RayTensorParallelGroup(self._shard, group.tensor_parallel_size)

    def node_and_weight_bytes(self) -> tuple[str, int]:
        return ray.get_runtime_context().get_node_id(), self._spec.weight_bytes

    def download_weights(self) -> None:
        """Have the checkpoint's files on this node. Raises CheckpointError."""
        download_weights(self._spec.config.model)

    def read_weights(self, source: WeightSource | None = None) -> Iterator[WeightChunk]:
        """Read the weights for all workers on this node, or those of `source`. Raises CheckpointError."""
        from actors.workers.weight_chunks import to_chunks

        yield from to_chunks(self._loader.load_weights(self._fetched(source or self._spec.weights), "cpu"))

    def _fetched(self, source: WeightSource) -> ModelSpec:
        from actors.workers.weight_chunks import fetched

        return replace(self._spec, weights=fetched(source))

    def resolve_auto(self) -> ModelSpec:
        """The model with auto replaced by what is measured here. Raises SettingsError."""
        return self._loader.resolve_auto(self._spec)

    def use(self, spec: ModelSpec) -> None:
        """Load this model, in which no setting is auto any more, so that all workers of a group round alike."""
        self._spec = spec

    def load_model(self, chunks: Sequence[Any] | None) -> WorkerInfo:
        """Load the model, from the chunks (references) of `read_weights` if there are any. Raises CheckpointError."""
        from actors.workers.weight_chunks import from_chunks

        weights = None if chunks is None else from_chunks(chunks)
        build_runner = self._runner_factory or self._loader.build_runner
        spec = self._fetched(self._spec.weights) if weights is None else self._spec
        self._runner = build_runner(spec, weights, self._tp_group)
        return WorkerInfo(self._runner.vocabulary, self._runner.position_bytes * self._tp_group.size)

    @ray.method(concurrency_group=STAGING)
    def stage(self, chunks: Sequence[Any] | None, source: WeightSource) -> None:
        """Make the model with the weights of `source`, or of the chunks that have them, beside the one that computes.
        Raises CheckpointError."""
        import torch

        from actors.workers.weight_chunks import from_chunks

        torch.set_num_threads(self._spec.config.group.threads)  # of this thread
        weights = None if chunks is None else from_chunks(chunks)
        spec = self._fetched(source) if weights is None else self._spec
        model = self._loader.build_model(spec, weights, self._tp_group)
        self._staged = replace(self._spec, weights=source), model

    def discard(self) -> None:
        """Drop what is staged."""
        self._staged = None

    def commit_weights(self, version: int) -> None:
        """Compute with the staged model from now on, or load its weights after a `sleep` of level 2. Between steps.
        Raises ProtocolError if another version is staged, or none."""
        staged, self._staged = self._staged, None
        if staged is None or staged[0].weights.version != version:
            raise ProtocolError(f"weights of version {version} are not staged here")
        self._spec, model = staged
        if hasattr(self, "_runner"):
            with self._guarded():
                self._runner.use_model(model)

    def sleep(self, level: int) -> None:
        """See `LocalEngine.sleep`. After level 2 it needs `load_model`, after level 1 `BranchRunner.wake_up`."""
        if level == 2:
            vars(self).pop("_runner", None)
        elif hasattr(self, "_runner"):
            self.call_runner("sleep")
        give_memory_back()

    def warm_up(self, shards: Rendezvous) -> None:
        """Compile the layers together with the other shards, in an epoch of its own. Raises TransferError."""
        self._tp_group.join(shards)
        self._loader.warm_up(self._runner)
        self._tp_group.leave()

    def join_epoch(
        self,
        workers: Rendezvous,
        shards: Rendezvous,
        steps: StepAddress | None,
        request_by_slot: Mapping[int, int],
        pending: Sequence[ScheduledRequest],
    ) -> tuple[bool, ...]:
        """Enter an epoch among the workers and among the shards of this worker; see `BranchRunner.reconcile`. `steps`:
        the source of plans; None: they are calls of `execute`. Raises TransferError if it reaches no peer or master."""
        if steps is not None and self._steps is None:
            self._steps = StepThread(steps, self.launch, workers.timeout_s, overlaps=self._overlaps)
        self._epoch = workers.epoch
        with self._guarded():
            self._transfer.join(workers)
            self._tp_group.join(shards)
            return self._runner.reconcile(request_by_slot, pending)

    def leave_groups(self) -> None:
        """Drop all connections: peers that wait for this worker in a collective are released."""
        self._transfer.leave()
        self._tp_group.leave()

    def call_runner(self, method: str, *arguments: Any) -> Any:
        """Call a method of the `BranchRunner` between steps."""
        with self._guarded():
            return getattr(self._runner, method)(*arguments)

    def forward_costs(self) -> ForwardCosts:
        """See `lopa_ray.execution.cost_trial.forward_costs`. Between steps."""
        from lopa_ray.execution.cost_trial import forward_costs

        with self._guarded():
            return forward_costs(self._spec.config, self._runner)

    def execute(self, plan: StepPlan) -> StepReport:
        """`launch`, and the report of the step; a report has the scores if it is of the first shard."""
        return self.launch(plan)()

    def launch(self, plan: StepPlan) -> Callable[[], StepReport]:
        """Begin a step; the returned function waits for its report. Raises ProtocolError for another epoch's plan."""
        if plan.epoch != self._epoch:
            raise ProtocolError(f"got a plan of epoch {plan.epoch}; this worker is in epoch {self._epoch}")
        with self._guarded():
            launched = self._runner.launch(plan, self._transfer)
        return partial(self._report, launched)

    def _report(self, launched: LaunchedStep) -> StepReport:
        with self._guarded():
            report = launched.report()
        if self._shard == 0:
            return report
        return StepReport.without_branches(report.epoch, report.step, report.commit_s, report.forward_s)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Around all that uses the device. After an error it releases the peers that may wait for this worker, and ends
        this process if the device computes no more: the master then replaces the worker."""
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
            reason = f"its device computes no more ({failure})"
            logger.critical(f"this worker ends, because {reason}, after: {error!r}")
            logging.shutdown()
            os._exit(1)
