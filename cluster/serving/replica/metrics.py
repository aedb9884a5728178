"""What Prometheus sees of a decode group, through Ray's metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from actors.client_streams import StepEvents
from actors.master import MasterStatus
from cluster.serving.engine_messages import ChoiceFinished
from lopa_ray.protocol.events import RequestStep

SECONDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0]
STEP_SECONDS = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
PER_FORWARD = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0]


class GroupMetrics:
    """The metrics of one replica; Ray adds node and replica, `model` is a tag."""

    def __init__(self, model: str) -> None:
        tags: dict[str, Any] = {"tag_keys": ("model",)}
        self._model = {"model": model}
        self._requests = Counter(
            "lopa_requests", "Requests by how they ended.", tag_keys=("model", "outcome")
        )
        self._latency = Histogram(
            "lopa_request_seconds", "Seconds from arrival to end.", SECONDS, tag_keys=("model", "outcome")
        )
        self._first_step = Histogram(
            "lopa_first_step_seconds", "Seconds from arrival to the first decided token.", SECONDS, **tags
        )
        self._tokens = Counter("lopa_tokens", "Tokens of finished choices.", **tags)
        self._tpf = Histogram(
            "lopa_tokens_per_forward", "Tokens per step of a finished choice.", PER_FORWARD, **tags
        )
        self._steps = Counter("lopa_steps", "Steps of the group.", **tags)
        self._phase_seconds = Histogram(
            "lopa_step_phase_seconds",
            "Seconds of a step by phase.",
            STEP_SECONDS,
            tag_keys=("model", "phase"),
        )
        self._branch_wins = Counter(
            "lopa_branch_wins",
            "Steps of requests by the kind of branch that won.",
            tag_keys=("model", "kind"),
        )
        self._workers = Gauge("lopa_workers", "Live branch workers.", **tags)
        self._wanted = Gauge("lopa_workers_wanted", "Branch workers that there should be.", **tags)
        self._slots = Gauge("lopa_slots_used", "Cache slots in use.", **tags)
        self._waiting = Gauge("lopa_requests_waiting", "Requests that wait for a slot in the group.", **tags)
        self._prefix_hits = Counter(
            "lopa_prefix_hits", "Requests that found the beginning of their prompt.", **tags
        )
        self._prefix_positions = Counter(
            "lopa_prefix_positions", "Prompt positions that were not computed again.", **tags
        )
        self._prefix_counts = (0, 0)
        """Prefix hits and positions of the last status."""

    def on_step(self, step_events: StepEvents) -> None:
        """After every step of the group."""
        if step_events.timing is None:
            return
        self._steps.inc(tags=self._model)
        for phase, seconds in asdict(step_events.timing).items():
            self._phase_seconds.observe(seconds, tags={**self._model, "phase": phase})
        kinds = [
            "lookahead" if event.plan.branches[event.outcome.winner].fills else "anchor"
            for event in step_events.events
            if isinstance(event, RequestStep)
        ]
        for kind in ("anchor", "lookahead"):
            if kind in kinds:
                self._branch_wins.inc(kinds.count(kind), tags={**self._model, "kind": kind})

    def on_choice_finished(self, finished: ChoiceFinished) -> None:
        """After every finished choice."""
        stats = finished.stats
        self._first_step.observe(stats.queued_seconds, tags=self._model)
        if stats.tokens:
            self._tokens.inc(stats.tokens, tags=self._model)
            self._tpf.observe(stats.tpf, tags=self._model)

    def on_request_finished(self, outcome: str, seconds: float) -> None:
        """After every request: finished, refused, deadline, cancelled or error."""
        self._requests.inc(tags={**self._model, "outcome": outcome})
        self._latency.observe(seconds, tags={**self._model, "outcome": outcome})

    def on_status(self, status: MasterStatus) -> None:
        """After every health check."""
        self._workers.set(0 if status.broken else status.workers, tags=self._model)
        self._wanted.set(status.target_workers, tags=self._model)
        self._slots.set(status.in_flight, tags=self._model)
        self._waiting.set(status.waiting, tags=self._model)
        # Of the group: another one, in place of a lost one, begins anew.
        counts = (status.prefix_hits, status.prefix_positions)
        previous = self._prefix_counts if counts >= self._prefix_counts else (0, 0)
        for counter, new, old in zip(
            (self._prefix_hits, self._prefix_positions), counts, previous, strict=True
        ):
            if new > old:
                counter.inc(new - old, tags=self._model)
        self._prefix_counts = counts
