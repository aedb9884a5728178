"""A program: decode on a group that is spread over the nodes of a running cluster, and say what was seen.

python spread_group.py ADDRESS WORKERS        prints one JSON object
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from dataclasses import asdict
from typing import Any

import ray
from ray.util import placement_group_table

from actors.async_engine import AsyncRayEngine
from lopa_ray.config.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestStep
from support.groups import PROMPTS, SETTINGS, config

NAMES = ("two_phase", "single_phase")


async def decode(wanted: Config) -> dict[str, Any]:
    """Decode some prompts one after the other, on a group of its own."""
    timings: dict[str, list[dict[str, float]]] = {name: [] for name in NAMES}
    tokens: dict[str, list[tuple[int, ...]]] = {name: [] for name in NAMES}
    engine = await AsyncRayEngine.start(wanted)
    try:
        places = placement_group_table(engine._group.reservation.placement_group)["bundles_to_node_id"]
        for name in NAMES:
            for prompt in PROMPTS:
                canvas: tuple[int, ...] = ()
                async for event in engine.events([engine.create_session(prompt, SETTINGS[name])]):
                    assert isinstance(event, RequestStep) and event.timing is not None, event
                    timings[name].append(asdict(event.timing))
                    canvas = event.outcome.canvas
                tokens[name].append(canvas)
    finally:
        engine.close()
    return {
        "nodes": len(set(places.values())),
        "tokens": tokens,
        "steps": {name: len(steps) for name, steps in timings.items()},
        "ms": {name: milliseconds(steps) for name, steps in timings.items()},
    }


def milliseconds(steps: list[dict[str, float]]) -> dict[str, list[float]]:
    """Phase, or `step` for all of them → the fastest tenth, the median and the slowest tenth of the steps."""
    found = {phase: [1000 * step[phase] for step in steps] for phase in steps[0]}
    found["step"] = [sum(1000 * seconds for seconds in step.values()) for step in steps]
    return {
        phase: [round(cut, 2) for cut in statistics.quantiles(values, n=10)[::4]]
        for phase, values in found.items()
    }


def seen(group: dict[str, Any]) -> dict[str, Any]:
    """Of a group on the cluster that this process is connected to; tokens only as whether they are right."""
    wanted = config(group=group)
    found = asyncio.run(decode(wanted))
    local = LocalEngine.from_config(config())
    expected = {
        name: [tuple(local.generate(prompt, SETTINGS[name]).token_ids) for prompt in PROMPTS]
        for name in NAMES
    }
    return {**found, "tokens": "equal" if found["tokens"] == expected else "different"}


def main() -> None:
    address, workers = sys.argv[1], int(sys.argv[2])
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    print(json.dumps(seen({"num_workers": workers, "num_cpus": 1.0, "placement": "SPREAD"})))


if __name__ == "__main__":
    main()
