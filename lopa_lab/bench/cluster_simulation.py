"""`lopa bench cluster`: what a cluster would do, by simulation: up to 1,024 branch actors in 64 groups.

The model. A group's master is one process, so what it does for its workers and branches adds up; the
workers compute at the same time, so the slowest decides:

    step     = plan + messages + commit + forward
    plan     = per_branch * branches in flight                  planning, selection, events
    messages = per_step + per_worker * workers + round trip     one call and one answer per worker
    commit   = bytes of the blocks that ended / bandwidth + round trip, if there is more than one worker
    forward  = the slowest worker's overhead + max(weights / memory bandwidth, operations / compute), with a jitter

Branches are spread evenly: a worker has ceil(requests * branches / workers). A request takes
tokens / TPF steps, and commits tokens / block size blocks of K/V in them. Groups share nothing but the
network, and a driver that hears of a group once per step or less: they add up.

The costs of planning and messages are measured; all of the rest is assumed, from data sheets and published
figures. Both stand in `cluster_costs.json` with where they come from.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa_lab.bench.measurements import BenchRecord, Measurements, Row, number
from lopa_ray.errors import SettingsError

COSTS = Path(__file__).with_name("cluster_costs.json")

STEPS = 2000
"""Simulated steps per row."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Groups of one size, all equally busy."""

    groups: int
    workers: int
    requests: int
    """In flight per group."""
    network: str


SCENARIOS = [
    # One request: latency. Several: throughput.
    *[Scenario(1, workers, 1, "nvlink") for workers in (1, 3, 5, 8)],
    Scenario(1, 5, 1, "10 GbE"),
    *[Scenario(groups, 5, 8, "nvlink") for groups in (1, 8, 64)],
    *[Scenario(groups, 8, 8, "nvlink") for groups in (1, 8, 64)],
    *[Scenario(groups, 16, 16, "100 GbE") for groups in (1, 4, 16, 64)],
    Scenario(64, 16, 16, "10 GbE"),
    Scenario(1, 1024, 1024, "100 GbE"),
]


def simulate(scenario: Scenario, costs: dict[str, Any]) -> Row:
    """Mean milliseconds of a step, and what follows from them."""
    measured, assumed = costs["measured"], costs["assumed"]
    model, device, network = assumed["model"], assumed["device"], assumed["networks"][scenario.network]
    branches = scenario.requests * model["branches"]
    per_worker = math.ceil(branches / scenario.workers)
    rng = random.Random(0)

    plan = measured["ms_per_branch"] * branches
    messages = (
        measured["ms_per_step"]
        + measured["ms_per_worker"] * scenario.workers
        + network["round_trip_ms"] * (scenario.workers > 1)
    )
    ended = scenario.requests * model["tokens_per_forward"] / model["block_size"]
    block_ms = 1000 * block_bytes(model) / (network["gigabytes_per_s"] * 1e9) + network["round_trip_ms"]
    operations = 2 * model["parameters"] * model["rows_per_branch"] * per_worker
    compute = 1000 * operations / (device["teraflops"] * 1e12)
    memory = 1000 * 2 * model["parameters"] / (device["gigabytes_per_s"] * 1e9)
    forward = statistics.fmean(
        (device["overhead_ms"] + max(compute, memory))
        * max(rng.lognormvariate(0, device["jitter"]) for _ in range(scenario.workers))
        for _ in range(max(1, STEPS // scenario.workers))
    )
    commit = ended * block_ms if scenario.workers > 1 else 0.0
    step = plan + messages + commit + forward
    per_request = 1000 * model["tokens_per_forward"] / step
    return {
        "groups": scenario.groups,
        "workers per group": scenario.workers,
        "branch actors": scenario.groups * scenario.workers,
        "requests per group": scenario.requests,
        "network": scenario.network,
        "step ms": step,
        "plan": plan,
        "messages": messages,
        "commit": commit,
        "forward": forward,
        "tokens/s per request": per_request,
        "tokens/s in all": per_request * scenario.requests * scenario.groups,
        "per GPU": per_request * scenario.requests / scenario.workers,
    }


def position_bytes(model: dict[str, Any]) -> int:
    """K and V of one position, in all layers."""
    return int(2 * model["layers"] * model["kv_heads"] * model["head_dim"] * model["bytes_per_value"])


def block_bytes(model: dict[str, Any]) -> int:
    """Bytes that a commit sends: K and V of a block, and the boundary row."""
    return int(model["block_size"] * position_bytes(model) + model["hidden_size"] * model["bytes_per_value"])


def simulate_clusters(costs: dict[str, Any]) -> Measurements:
    """All scenarios. `costs`: as `read_costs` gives them."""
    measured = costs["measured"]
    return Measurements(
        ("groups", "workers per group", "requests per group", "network"),
        [simulate(scenario, costs) for scenario in SCENARIOS],
        "Simulated. Costs of planning and of messages were measured: "
        f"{measured['ms_per_branch']:.3g} ms per branch, {measured['ms_per_step']:.3g} ms per step and "
        f"{measured['ms_per_worker']:.3g} ms per worker ({measured['command']}; {measured['machine']}). Forwards, "
        "networks and TPF are assumed, from data sheets and published figures.",
    )


def read_costs(steps: BenchRecord | None) -> dict[str, Any]:
    """What is assumed, and the costs of planning and messages.

    These are those of the package, or a fit to a record of `lopa bench step` on several numbers of workers. Raises
    SettingsError for another record.
    """
    costs: dict[str, Any] = json.loads(COSTS.read_text(encoding="utf-8"))
    if steps is not None:
        costs["measured"] = fit_costs(steps)
    return costs


def fit_costs(steps: BenchRecord) -> dict[str, Any]:
    """Milliseconds per branch, per step and per worker that explain the steps of groups.

    Raises SettingsError if the record has too few sizes to tell them apart.
    """
    rows = [row for row in steps.rows if steps.name == "step" and row["workers"]]
    sizes = [number(row, "workers") for row in rows]
    others = {(row["branches"], row["requests"], row["shards"]) for row in rows}
    if len(set(sizes)) < 2 or len(others) > 1:
        raise SettingsError(
            "--steps: name a record of lopa bench step with at least two numbers of workers from 1 on, and one of "
            "branches, requests and shards each"
        )
    waits = [number(row, "scatter ms") + number(row, "gather ms") for row in rows]
    slope, start = statistics.linear_regression(sizes, waits)
    planning = [
        (number(row, "plan ms") + number(row, "select ms"))
        / (number(row, "branches") * number(row, "requests"))
        for row in rows
    ]
    return {
        "command": steps.command_line,
        "machine": steps.environment,
        "ms_per_branch": statistics.median(planning),
        "ms_per_step": max(start, 0.0),
        "ms_per_worker": max(slope, 0.0),
    }
