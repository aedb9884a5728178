"""A program: decode on a group that is spread over the nodes of a running cluster, and report tokens and times.

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
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestStep
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

SETTINGS_NAMES = ("two_phase", "single_phase")


async def decode(config: Config) -> dict[str, Any]:
    """Decode some prompts one after the other, on a group of its own."""
    timings: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS_NAMES}
    tokens: dict[str, list[tuple[int, ...]]] = {name: [] for name in SETTINGS_NAMES}
    async with await AsyncRayEngine.start(config) as engine:
        places = placement_group_table(engine._group.reservation.placement_group)["bundles_to_node_id"]
        for name in SETTINGS_NAMES:
            for prompt in PROMPTS:
                canvas: tuple[int, ...] = ()
                async for event in engine.events([engine.create_session(prompt, SETTINGS[name])]):
                    assert isinstance(event, RequestStep) and event.timing is not None, event
                    timings[name].append(asdict(event.timing))
                    canvas = event.outcome.canvas
                tokens[name].append(canvas)
    return {
        "nodes": len(set(places.values())),
        "tokens": tokens,
        "steps": {name: len(steps) for name, steps in timings.items()},
        "ms": {name: milliseconds(steps) for name, steps in timings.items()},
    }


def milliseconds(steps: list[dict[str, float]]) -> dict[str, list[float]]:
    """Phase, or `step` for all of them → the fastest tenth, the median and the slowest tenth of the steps."""
    durations = {phase: [1000 * step[phase] for step in steps] for phase in steps[0]}
    durations["step"] = [sum(1000 * seconds for seconds in step.values()) for step in steps]
    return {
        phase: [round(cut, 2) for cut in statistics.quantiles(values, n=10)[::4]]
        for phase, values in durations.items()
    }


def decode_and_compare(group: dict[str, Any]) -> dict[str, Any]:
    """Decode on a group of the cluster that this process is connected to; `tokens` says whether they are right."""
    decoded = asyncio.run(decode(tiny_config(group=group)))
    local = LocalEngine.from_config(tiny_config())
    expected = {
        name: [tuple(local.generate(prompt, SETTINGS[name]).token_ids) for prompt in PROMPTS]
        for name in SETTINGS_NAMES
    }
    return {**decoded, "tokens": "equal" if decoded["tokens"] == expected else "different"}


def main() -> None:
    address, workers = sys.argv[1], int(sys.argv[2])
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    print(json.dumps(decode_and_compare({"num_workers": workers, "num_cpus": 1.0})))


if __name__ == "__main__":
    main()
