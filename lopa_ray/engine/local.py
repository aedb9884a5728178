"""LocalEngine: the whole decoder in one process. Every other engine has to give the same results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Condition, Lock
from typing import Any, Self

from torch import Tensor

from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import open_model
from lopa_ray.errors import RequestCancelledError
from lopa_ray.execution.cost_trial import forward_costs
from lopa_ray.execution.device import give_memory_back
from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.model_loader import build_model, build_runner, resolve_auto
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.weights import host_copies
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.holds import Hold, Running, check_level
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.scheduler import Scheduler
from lopa_ray.text.tokenizer import Tokenizer


class LocalEngine(Engine):
    """Runs sessions, scheduler and runner in this process, in the threads of its callers. A caller that waits for an
    event runs steps of all requests in flight, also for other threads."""

    def __init__(
        self, config: Config, runner: BranchRunner, tokenizer: Tokenizer | None, spec: ModelSpec | None = None
    ) -> None:
        """Use an existing runner, of the model `spec` (None: of the configuration's). `from_config` and
        `from_pretrained` load one."""
        super().__init__(config, runner.vocabulary, tokenizer)
        self.runner = runner
        self._spec = spec
        self._scheduler = Scheduler.from_config(config)
        self._in_flight: deque[LaunchedStep] = deque()  # whose reports are not processed, the oldest first
        self._event_queues: dict[int, deque[RequestEvent]] = {}
        """Id of an unfinished request → the queue of its events. Each active call of `events` has its own queue."""
        self._abandoned: deque[int] = deque()  # unfinished requests whose callers have stopped iterating
        self._stepping = False
        self._changed = Condition()
        """A step or hold has ended. Its lock is held while scheduler or queues change, not while a step is computed."""
        self._changing = Lock()  # held during a change of the weights, a pause and so on: one at a time

    @property
    def num_workers(self) -> int:
        return 1

    @property
    def prefix_index(self) -> PrefixIndex:
        return self._scheduler.prefix_index

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Load the configuration's model. Raises CheckpointError, and SettingsError if it cannot run here."""
        config, spec, tokenizer = open_model(config)
        spec = resolve_auto(spec)
        return cls(config.replace(model=spec.config.model), build_runner(spec), tokenizer, spec)

    @classmethod
    def from_pretrained(cls, path: str | Path = "demo", **model: Any) -> Self:
        """Load a checkpoint from a folder, or by its name on the Hub. `model` are fields of `ModelSettings` (dtype,
        device, lora, max_num_seqs, max_model_len). Raises SettingsError and CheckpointError."""
        return cls.from_config(Config.parse({"model": {"path": str(path), **model}}))

    # Weights and memory

    @property
    def weight_version(self) -> int:
        """The version of the weights; 0: those that were loaded."""
        return self._scheduler.weight_version

    def update_weights(
        self,
        source: str | Path | Mapping[str, Tensor],
        *,
        version: int | None = None,
        running: Running = "wait",
    ) -> int:
        """Compute with other weights of the same model from a step on; returns their `version` (None: the last + 1).
        `source`: a folder with all weights; one with a PEFT LoRA adapter, which is merged over the weights that the
        engine was started with; or tensors, [...] in any float dtype, in the place of those with the same names in the
        checkpoint's files. Configuration and tokenizer stay. `running`: requests that have begun end before (wait), end
        now with RequestCancelledError (abort), or go on, with their K/V computed anew (keep); others wait. Raises
        SettingsError, and CheckpointError that names a tensor that does not fit; all is as before then."""
        with self._changing:
            spec = self._model
            given = dict(host_copies(source)) if isinstance(source, Mapping) else source
            spec = replace(spec, weights=spec.weights.next(given, version))
            model = build_model(spec)
            self._hold("update", running)
            try:
                with self._between_steps():
                    self._scheduler.suspend()
                    self._spec, self._scheduler.weight_version = spec, spec.weights.version
                    if self._has_runner:
                        self.runner.use_model(model)
            finally:
                self._release("update")
            return spec.weights.version

    def pause(self, running: Running = "wait") -> None:
        """Begin no step until `resume`; requests wait. `running`: see `update_weights`; with keep they keep K/V too."""
        with self._changing:
            self._hold("pause", running)

    def resume(self) -> None:
        with self._changing:
            self._release("pause")

    def is_paused(self) -> bool:
        return "pause" in self._scheduler.holds.reached

    def sleep(self, level: int = 1) -> None:
        """Free memory, and have requests wait, until `wake_up`. 1: the memory of K/V, and on an accelerator of weights,
        which go to the host's. 2: of both; weights are loaded anew. K/V of requests that have begun are computed anew.
        Raises SettingsError for another level."""
        check_level(level)
        with self._changing:
            self._hold("sleep", "keep")
            with self._between_steps():
                self._scheduler.suspend()
                if level == 2:
                    vars(self).pop("runner", None)
                elif self._has_runner:
                    self.runner.sleep()
                give_memory_back()

    def wake_up(self) -> None:
        """End `sleep`; tokens are as before. Raises CheckpointError without the files, RuntimeError without memory."""
        with self._changing:
            if not self.is_sleeping():
                return
            if self._has_runner:
                self.runner.wake_up()
            else:
                self.runner = build_runner(self._model)
            self._release("sleep")

    def is_sleeping(self) -> bool:
        return "sleep" in self._scheduler.holds.reached

    def reset_prefix_cache(self) -> None:
        """Drop the stored prefixes of prompts."""
        with self._changing, self._between_steps():
            self._in_flight.clear()  # the next call plans these steps again
            if self._has_runner:
                self.runner.reconcile(self._scheduler.request_by_slot, self._scheduler.pending_commits())
            self._scheduler.enter_epoch(self._scheduler.epoch + 1, {})

    @property
    def _model(self) -> ModelSpec:
        return self._spec or ModelSpec.read(self.config)

    @property
    def _has_runner(self) -> bool:
        """There is none during a sleep of level 2."""
        return "runner" in vars(self)

    def _hold(self, reason: Hold, running: Running) -> None:
        with self._changed:
            self._scheduler.hold(reason, running)
            self._changed.notify_all()
        try:
            while not self._scheduler.is_held(reason):
                with self._between_steps():
                    self._step()
        except BaseException:
            self._release(reason)
            raise

    def _release(self, reason: Hold) -> None:
        with self._changed:
            self._scheduler.holds.remove(reason)
            self._changed.notify_all()

    # Requests

    def events(self, sessions: Sequence[RequestSession]) -> Iterator[RequestEvent]:
        queue: deque[RequestEvent] = deque()
        index_of: dict[int, int] = {}
        try:
            with self._changed:
                for index, session in enumerate(sessions):
                    request_id = self._scheduler.submit(session)
                    index_of[request_id] = index
                    self._event_queues[request_id] = queue
            while (event := self._next_event(queue, index_of)) is not None:
                yield replace(event, request_key=index_of[event.request_key])
        finally:
            # The garbage collector may close an iterator in the middle of a step, so this waits for nothing.
            queues = self._event_queues
            self._abandoned.extend(key for key in index_of if queues.pop(key, None) is not None)

    def _next_event(self, queue: deque[RequestEvent], request_ids: Collection[int]) -> RequestEvent | None:
        """The next event of these requests, whose queue is given; None after the last."""
        while True:
            with self._changed:
                while not (queue or self._event_queues.keys().isdisjoint(request_ids) or self._may_step):
                    self._changed.wait()
                if queue:
                    return queue.popleft()
                if self._event_queues.keys().isdisjoint(request_ids):
                    return None
            with self._between_steps():
                if not queue:
                    self._step()

    @property
    def _may_step(self) -> bool:
        return not self._stepping and self._scheduler.busy

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """No other thread begins a step meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: not self._stepping)
            self._stepping = True
        try:
            yield
        finally:
            with self._changed:
                self._stepping = False
                self._changed.notify_all()

    def _step(self) -> None:
        """Launch the steps that may be in flight, and process the reports of the oldest. If a step fails, the next
        calls run it again, each of its requests alone; a request that fails alone ends."""
        scheduler = self._scheduler
        if scheduler.lacks_costs and not self._in_flight:
            scheduler.set_costs(forward_costs(self.config, self.runner))
        try:
            if not self._in_flight:
                self._launch(scheduler.plan)
            if self._in_flight:
                self._launch(scheduler.plan_overlapped)
            reports = [self._in_flight.popleft().report()] if self._in_flight else []
        except BaseException as error:
            self._in_flight.clear()  # the next call plans these steps again
            if not isinstance(error, Exception) or not scheduler.planned_ids:
                raise
            with self._changed:
                culprit = scheduler.poison.record_error(scheduler.planned_ids)
                if culprit is not None:
                    scheduler.abort(culprit, error)
            return
        with self._changed:
            for event in scheduler.advance(reports):
                self._publish(event)

    def _launch(self, plan_step: Callable[[int], list[StepPlan]]) -> None:
        with self._changed:
            while self._abandoned:
                error = RequestCancelledError("the caller stopped listening")
                self._scheduler.abort(self._abandoned.popleft(), error)
            plans = plan_step(self.num_workers)
        self._in_flight.extend(self.runner.launch(plan) for plan in plans)

    def _publish(self, event: RequestEvent) -> None:
        key = event.request_key
        ended = isinstance(event, RequestFailure) or event.outcome.finish_reason is not None
        queue = self._event_queues.pop(key, None) if ended else self._event_queues.get(key)
        if queue is not None:
            queue.append(event)
