"""LocalEngine: the whole decoder in one process. Every other engine has to give the same results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import open_model
from lopa_ray.errors import RequestCancelledError
from lopa_ray.execution.launched_step import LaunchedStep
from lopa_ray.execution.model_loader import build_runner, resolve_auto
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.scheduler import Scheduler
from lopa_ray.text.tokenizer import Tokenizer


class LocalEngine(Engine):
    """Runs sessions, scheduler and runner in this process and thread."""

    def __init__(self, config: Config, runner: BranchRunner, tokenizer: Tokenizer | None) -> None:
        """Use an existing runner. `from_config` and `from_pretrained` load one."""
        super().__init__(config, runner.vocabulary, tokenizer)
        self.runner = runner
        self._scheduler = Scheduler.from_config(config)
        self._in_flight: deque[LaunchedStep] = deque()
        """Steps whose reports are not processed yet, the oldest first."""
        self._event_queues: dict[int, deque[RequestEvent]] = {}
        """Id of an unfinished request → the queue of its events. Each active call of `events` has its own queue."""

    @property
    def num_workers(self) -> int:
        """One, whatever the configuration says: this process."""
        return 1

    @property
    def prefix_index(self) -> PrefixIndex:
        """The index of stored prompt prefixes, with its hit counters."""
        return self._scheduler.prefix_index

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Load the model that the configuration names.

        Raises CheckpointError if it cannot be loaded, and SettingsError if it cannot run on this machine.
        """
        config, spec, tokenizer = open_model(config)
        spec = resolve_auto(spec)
        return cls(config.replace(model=spec.config.model), build_runner(spec), tokenizer)

    @classmethod
    def from_pretrained(cls, path: str | Path = "demo", **model: Any) -> Self:
        """Load a checkpoint from a folder, or by its name on the Hub.

        `model` are fields of `ModelSettings` (dtype, device, lora, max_num_seqs, max_model_len). Raises SettingsError
        and CheckpointError.
        """
        return cls.from_config(Config.parse({"model": {"path": str(path), **model}}))

    def events(self, sessions: Sequence[DecodeSession]) -> Iterator[RequestEvent]:
        """See `Engine.events`. If no event is queued, `next` on the iterator runs a step of all requests in flight."""
        queue: deque[RequestEvent] = deque()
        index_of: dict[int, int] = {}
        try:
            for index, session in enumerate(sessions):
                request_id = self._scheduler.submit(session)
                index_of[request_id] = index
                self._event_queues[request_id] = queue
            while queue or any(request_id in self._event_queues for request_id in index_of):
                if not queue:
                    self._step()
                    continue
                event = queue.popleft()
                yield replace(event, request_key=index_of[event.request_key])
        finally:
            for request_id in index_of:
                if self._event_queues.pop(request_id, None) is not None:
                    self._scheduler.abort(request_id, RequestCancelledError("the caller stopped listening"))

    def _step(self) -> None:
        """Launch the steps that may be in flight, and process the reports of the oldest."""
        scheduler = self._scheduler
        try:
            if not self._in_flight:
                self._launch(scheduler.plan(num_workers=1))
            if self._in_flight:
                self._launch(scheduler.plan_beside(num_workers=1))
            reports = [self._in_flight.popleft().report()] if self._in_flight else []
        except BaseException:
            self._in_flight.clear()  # the next call plans these steps again
            raise
        for event in scheduler.advance(reports):
            queue = self._event_queues.get(event.request_key)
            if queue is None:
                continue
            queue.append(event)
            if isinstance(event, RequestFailure) or event.outcome.finish_reason is not None:
                del self._event_queues[event.request_key]

    def _launch(self, plans: Sequence[StepPlan]) -> None:
        self._in_flight.extend(self.runner.launch(plan) for plan in plans)
