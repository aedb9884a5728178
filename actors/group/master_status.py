"""MasterStatus: how a group is doing, as its master answers it, and which fields Prometheus sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lopa_ray.errors import LopaError


def _metric(kind: str, name: str, help_text: str) -> Any:
    return field(default=0, metadata={kind: (name, help_text)})


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterStatus:
    """The state of a group. A field with a metric says in its help what it counts."""

    workers: int
    """Workers that take part in steps."""
    pending_workers: int = 0
    """Workers that wait for a place in the cluster, load the model, or wait for the next step."""
    target_workers: int = _metric("gauge", "lopa_workers_wanted", "Branch workers that there should be.")
    max_num_seqs: int
    in_flight: int = _metric("gauge", "lopa_slots_used", "Cache slots in use.")
    waiting: int = _metric("gauge", "lopa_requests_waiting", "Requests that wait for a slot in the group.")
    waiting_by_client: Mapping[str, int] = field(default_factory=dict)
    """The requests of `waiting` by client, where a client has some; see `RequestSession.client`."""
    steps: int = 0
    stalled_s: float = 0.0
    """Seconds since the present step began; 0 while idle."""
    broken: LopaError | None = None
    last_error: LopaError | None = None
    """Why the last attempt to get another worker failed; None once one joined after it."""
    prefix_hits: int = _metric(
        "counter", "lopa_prefix_hits", "Requests that found the beginning of their prompt."
    )
    prefix_positions: int = _metric(
        "counter", "lopa_prefix_positions", "Prompt positions that were not computed again."
    )
    failed_steps: int = 0
    """How many attempts at a step have failed in a row; 0 after a success."""
    lost_workers: int = _metric("counter", "lopa_lost_workers", "Branch workers that have died or hung.")
    out_of_memory_steps: int = _metric(
        "counter", "lopa_out_of_memory_steps", "Steps that failed because a worker had too little memory."
    )
    max_step_rows: int
    """Maximum of rows of a worker in one step, unless a single branch has more; see `StepLimit`."""
    dtype: str
    """The dtype of weights and K/V: `model.dtype`, or what auto stands for."""


def _metrics(kind: str) -> dict[str, tuple[str, str]]:
    return {entry.name: entry.metadata[kind] for entry in fields(MasterStatus) if kind in entry.metadata}


COUNTERS = _metrics("counter")  # field → name and help of its metric, which begins at 0 with each group
GAUGES = _metrics("gauge")  # the same for gauges
