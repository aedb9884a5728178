"""The metrics of a decode group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from actors.group.master_status import COUNTERS, GAUGES, MasterStatus
from cluster.choices.messages import ChoiceFinished
from cluster.serving.replica.exported_metrics import ExportedMetrics
from lopa_ray.protocol.events import RequestStep, StepEvents

SECONDS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0]
STEP_SECONDS = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
NO_KEY = "no key"  # one label for all clients without a key; a label per address would be unbounded
PER_FORWARD = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0]


class GroupMetrics:
    """The metrics of one replica. Ray adds node and replica to its samples, the server the replica to its own."""

    def __init__(self, model: str) -> None:
        self._metrics = metrics = ExportedMetrics(model)
        counter, gauge, histogram = metrics.counter, metrics.gauge, metrics.histogram
        self._requests = counter("lopa_requests", "Requests by how they ended.", "outcome")
        self._latency = histogram("lopa_request_seconds", "Seconds from arrival to end.", SECONDS, "outcome")
        self._first_step = histogram(
            "lopa_first_step_seconds", "Seconds from arrival to the first decided token.", SECONDS
        )
        self._tokens = counter("lopa_tokens", "Tokens of finished choices.")
        self._tpf = histogram("lopa_tokens_per_forward", "Tokens per step of a finished choice.", PER_FORWARD)
        self._questions = counter("lopa_decision_questions", "Questions of finished decisions.")
        self._steps = counter("lopa_steps", "Steps of the group.")
        self._phase_seconds = histogram(
            "lopa_step_phase_seconds", "Seconds of a step by phase.", STEP_SECONDS, "phase"
        )
        self._branch_wins = counter(
            "lopa_branch_wins",
            "Steps of requests by the kind of branch that won, or was accepted last.",
            "kind",
        )
        self._rule_steps = counter("lopa_rule_steps", "Steps of the unmasking rule in steps of requests.")
        self._workers = gauge("lopa_workers", "Live branch workers.")
        self._client_waiting = gauge(
            "lopa_client_requests_waiting",
            "Requests that wait for a slot, by the API key that they have.",
            "client",
        )
        self._clients: set[str] = {NO_KEY}  # clients that had waiting requests
        self._group_gauges = {field: gauge(*metric) for field, metric in GAUGES.items()}
        self._group_counters = {field: counter(*metric) for field, metric in COUNTERS.items()}
        self._group_counts = dict.fromkeys(self._group_counters, 0)  # the counts in the last status
        self._lost_groups = counter("lopa_lost_groups", "Groups that were lost, and replaced if possible.")
        self._num_lost_groups = 0

    def text(self) -> str:
        return self._metrics.text()

    def on_step(self, step_events: StepEvents) -> None:
        if step_events.timing is None:
            return
        self._steps.inc()
        for phase, seconds in asdict(step_events.timing).items():
            self._phase_seconds.observe(seconds, phase=phase)
        wins: Counter[str] = Counter()
        rule_steps = 0
        for event in step_events.events:
            if isinstance(event, RequestStep) and event.outcome.rule_steps:  # steps of decisions fill nothing
                fills = event.plan.branches[event.outcome.winner].fills
                wins["lookahead" if fills else "anchor"] += 1
                rule_steps += len(event.outcome.rule_steps)
        for kind, count in wins.items():
            self._branch_wins.inc(count, kind=kind)
        if rule_steps:
            self._rule_steps.inc(rule_steps)

    def on_choice_finished(self, finished: ChoiceFinished) -> None:
        stats = finished.stats
        self._first_step.observe(stats.queued_seconds)
        if stats.tokens:
            self._tokens.inc(stats.tokens)
            self._tpf.observe(stats.tpf)

    def on_decision_finished(self, questions: int) -> None:
        self._questions.inc(questions)

    def on_request_finished(self, outcome: str, seconds: float) -> None:
        """Count a request's outcome: finished, refused, deadline, cancelled or error."""
        self._requests.inc(outcome=outcome)
        self._latency.observe(seconds, outcome=outcome)

    def on_status(self, status: MasterStatus, lost_groups: int) -> None:
        """Record a health check. `lost_groups`: see `AsyncRayEngine.lost_groups`."""
        if lost_groups > self._num_lost_groups:
            self._lost_groups.inc(lost_groups - self._num_lost_groups)
            self._num_lost_groups = lost_groups
        self._workers.set(0 if status.broken else status.workers)
        for field, gauge in self._group_gauges.items():
            gauge.set(getattr(status, field))
        self._count_clients(status.waiting_by_client)
        counts: dict[str, int] = {field: getattr(status, field) for field in self._group_counters}
        # A group that replaces a lost one begins at 0.
        if any(count < self._group_counts[field] for field, count in counts.items()):
            self._group_counts = dict.fromkeys(self._group_counters, 0)
        for field, count in counts.items():
            if count > self._group_counts[field]:
                self._group_counters[field].inc(count - self._group_counts[field])
        self._group_counts = counts

    def _count_clients(self, waiting: Mapping[str, int]) -> None:
        """Count clients by API key, whose name is its place among the keys."""
        by_label = dict.fromkeys(self._clients, 0)
        for client, number in waiting.items():
            label = client if client.startswith("key ") else NO_KEY
            by_label[label] = by_label.get(label, 0) + number
        for label, number in by_label.items():
            self._client_waiting.set(number, client=label)
        self._clients.update(by_label)
