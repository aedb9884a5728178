"""LocalEngine: the whole decoder in one process. Every other engine has to give the same results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Condition
from typing import Any, Self

from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import open_model
from lopa_ray.errors import RequestCancelledError
from lopa_ray.execution.cost_trial import forward_costs
from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.model_loader import build_runner, resolve_auto
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.scheduler import Scheduler
from lopa_ray.text.tokenizer import Tokenizer


class LocalEngine(Engine):
    """Runs sessions, scheduler and runner in this process, in the threads of its callers. A caller that waits for an
    event runs steps of all requests in flight, also for other threads."""

    def __init__(self, config: Config, runner: BranchRunner, tokenizer: Tokenizer | None) -> None:
        """Use an existing runner. `from_config` and `from_pretrained` load one."""
        super().__init__(config, runner.vocabulary, tokenizer)
        self.runner = runner
        self._scheduler = Scheduler.from_config(config)
        self._in_flight: deque[LaunchedStep] = deque()  # whose reports are not processed, the oldest first
        self._event_queues: dict[int, deque[RequestEvent]] = {}
        """Id of an unfinished request → the queue of its events. Each active call of `events` has its own queue."""
        self._abandoned: deque[int] = deque()  # unfinished requests whose callers have stopped iterating
        self._stepping = False
        self._changed = Condition()
        """A step has ended. Its lock is held while scheduler or queues change, but not while a step is computed."""

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
        return cls(config.replace(model=spec.config.model), build_runner(spec), tokenizer)

    @classmethod
    def from_pretrained(cls, path: str | Path = "demo", **model: Any) -> Self:
        """Load a checkpoint from a folder, or by its name on the Hub. `model` are fields of `ModelSettings` (dtype,
        device, lora, max_num_seqs, max_model_len). Raises SettingsError and CheckpointError."""
        return cls.from_config(Config.parse({"model": {"path": str(path), **model}}))

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
                while not queue and self._stepping:
                    self._changed.wait()
                if queue:
                    return queue.popleft()
                if self._event_queues.keys().isdisjoint(request_ids):
                    return None
                self._stepping = True
            try:
                self._step()
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
