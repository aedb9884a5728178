"""What a cluster would do, by simulation: up to 1,024 branch actors in 64 groups.

    python benchmarks/simulate_cluster.py                       # the tables of docs/cluster.md
    python benchmarks/simulate_cluster.py --measure MACHINE     # measure the costs of messages first; MACHINE names it

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

import argparse
import json
import math
import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import markdown_table

COSTS = Path(__file__).with_name("cluster_costs.json")

TINY_MODEL = Path(__file__).parents[1] / "tests" / "golden" / "models" / "dream-tiny-2l"

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


LATENCY = [
    *[Scenario(1, workers, 1, "nvlink") for workers in (1, 3, 5, 8)],
    Scenario(1, 5, 1, "10 GbE"),
]

THROUGHPUT = [
    *[Scenario(groups, 5, 8, "nvlink") for groups in (1, 8, 64)],
    *[Scenario(groups, 8, 8, "nvlink") for groups in (1, 8, 64)],
    *[Scenario(groups, 16, 16, "100 GbE") for groups in (1, 4, 16, 64)],
    Scenario(64, 16, 16, "10 GbE"),
    Scenario(1, 1024, 1024, "100 GbE"),
]


def simulate(scenario: Scenario, costs: dict[str, Any]) -> dict[str, Any]:
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
    """What a commit sends: K and V of a block, and the boundary row."""
    return int(model["block_size"] * position_bytes(model) + model["hidden_size"] * model["bytes_per_value"])


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as a Markdown table."""
    return markdown_table([list(rows[0]), *([_number(value) for value in row.values()] for row in rows)])


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


# Measuring


def measure(machine: str, workers: list[int], num_branches: int) -> dict[str, Any]:
    """Decode with groups of several sizes, and fit the master's costs to what their steps took."""
    import numpy as np

    from lopa_ray.config.decoder_settings import LopaSettings

    settings = LopaSettings(num_branches=num_branches, max_new_tokens=96, ignore_eos=True)
    rows = [{"workers": size, **_phase_medians(size, settings)} for size in workers]
    sizes = np.array([row["workers"] for row in rows], dtype=float)
    waits = np.array([row["scatter"] + row["gather"] for row in rows])
    slope, start = np.polyfit(sizes, waits, 1)
    return {
        "command": "OMP_NUM_THREADS=1 python benchmarks/simulate_cluster.py --measure MACHINE",
        "machine": machine,
        "medians_ms": rows,
        "ms_per_branch": round(
            statistics.median(row["plan"] + row["select"] for row in rows) / num_branches, 4
        ),
        "ms_per_step": round(max(float(start), 0.0), 4),
        "ms_per_worker": round(float(slope), 4),
    }


def _phase_medians(workers: int, settings: Any) -> dict[str, float]:
    import asyncio
    from dataclasses import asdict

    import ray

    from actors.async_engine import AsyncRayEngine
    from lopa_ray.config.config import Config
    from lopa_ray.protocol.events import RequestStep

    # A forward takes next to nothing, so that workers do not keep the master from its core.
    model = {"path": str(TINY_MODEL), "max_model_len": 128}
    config = Config.parse({"model": model, "group": {"num_workers": workers, "num_cpus": 0.1}})
    steps: list[dict[str, float]] = []

    async def decode() -> None:
        async with await AsyncRayEngine.start(config) as engine:
            for first in range(20, 30):
                session = engine.create_session([first, 30, 31, 32], settings)
                async for event in engine.events([session]):
                    assert isinstance(event, RequestStep) and event.timing is not None, event
                    steps.append(asdict(event.timing))

    ray.init(
        address="local", num_cpus=2, object_store_memory=10**8, include_dashboard=False, log_to_driver=False
    )
    try:
        asyncio.run(decode())
    finally:
        ray.shutdown()
    warm = steps[len(steps) // 10 :]
    return {phase: round(1000 * statistics.median(step[phase] for step in warm), 3) for phase in warm[0]}


def main() -> None:
    """Parse the command line; measure, or print the tables."""
    parser = argparse.ArgumentParser(description="Simulate a cluster of decode groups.")
    parser.add_argument("--measure", metavar="MACHINE", help="measure the costs of messages on this machine")
    arguments = parser.parse_args()
    costs = json.loads(COSTS.read_text(encoding="utf-8"))
    if arguments.measure is not None:
        costs["measured"] = measure(arguments.measure, [1, 2, 4, 8], num_branches=8)
        COSTS.write_text(json.dumps(costs, indent=2) + "\n", encoding="utf-8")
    for title, scenarios in (("One request at a time", LATENCY), ("Busy groups", THROUGHPUT)):
        print(f"{title}\n\n{table([simulate(scenario, costs) for scenario in scenarios])}\n")


if __name__ == "__main__":
    main()
