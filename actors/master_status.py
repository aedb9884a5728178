"""MasterStatus: how a group is doing, as its master answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lopa_ray.errors import LopaError


@dataclass(frozen=True, slots=True)
class MasterStatus:
    """How a group is doing."""

    workers: int
    """Workers that take part in steps."""
    pending_workers: int
    """Workers that wait for a place in the cluster, load the model, or wait for the next step."""
    target_workers: int
    """How many there should be: as configured, as an operator has set it, or as the load has it."""
    max_num_seqs: int
    in_flight: int
    waiting: int
    waiting_by_client: Mapping[str, int]
    """Of `waiting`, the requests of each client that has some; see `RequestSession.client`."""
    steps: int
    stalled_s: float
    """Seconds since the step under way began; 0 while idle."""
    broken: LopaError | None
    last_error: LopaError | None
    """Why the last attempt to get another worker failed; None once one joined after it."""
    prefix_hits: int
    """Requests that found K/V of the beginning of their prompt."""
    prefix_positions: int
    """Positions that they did not have to compute."""
    failed_steps: int
    """How many attempts at a step have failed in a row; 0 after one that succeeded."""
    lost_workers: int
    """Workers that have died or hung."""
    out_of_memory_steps: int
    """Steps that failed because a worker had too little memory."""
    max_step_rows: int
    """The most rows that a worker gets in one step, unless a single branch has more; see `StepLimit`."""
    dtype: str
    """Of weights and K/V: `model.dtype`, or what auto stands for."""
