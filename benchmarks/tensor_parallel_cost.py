"""What a step costs on grids of branch workers and shards.

    python benchmarks/tensor_parallel_cost.py
    python benchmarks/tensor_parallel_cost.py --width 2048 --layers 8 --grids 1x1 1x2 1x4

A Markdown table. Each grid, WORKERSxSHARDS, is a group of its own, on a model with random weights in the demo model's
layout. All decode the same prompt with LoPA, `--branches` branches of 32 positions per step, every shard on one
thread. Medians over steps; `forward` is that of the slowest worker, with the communication between its shards.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import tempfile
from dataclasses import astuple
from pathlib import Path

import ray

from actors.async_engine import AsyncRayEngine
from lopa_ray.config.config import Config
from lopa_ray.protocol.events import RequestStep
from start_up import write_checkpoint
from tables import markdown_table

PROMPT = list(range(10, 70))


async def measure_steps(config: Config) -> tuple[list[float], list[float], tuple[int, ...]]:
    """Milliseconds of each forward and of each step, without the first ones, and the canvas."""
    forward_ms, step_ms, canvas = [], [], ()
    async with await AsyncRayEngine.start(config) as engine:
        async for event in engine.events([engine.create_session(PROMPT, config.decode)]):
            assert isinstance(event, RequestStep) and event.timing is not None, event
            forward_ms.append(1000 * event.timing.forward)
            step_ms.append(1000 * sum(astuple(event.timing)))
            canvas = event.outcome.canvas
    return forward_ms[3:], step_ms[3:], canvas


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grids", nargs="+", default=["1x1", "1x2", "2x1"], metavar="WORKERSxSHARDS")
    parser.add_argument("--width", type=int, default=1024, help="hidden size, a multiple of 128")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--branches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="groups of each grid, in turns")
    arguments = parser.parse_args()
    grids = [tuple(map(int, grid.split("x"))) for grid in arguments.grids]
    forward_ms: dict[tuple[int, ...], list[float]] = {grid: [] for grid in grids}
    step_ms: dict[tuple[int, ...], list[float]] = {grid: [] for grid in grids}
    canvases: dict[tuple[int, ...], tuple[int, ...]] = {}
    actors = max(workers * shards for workers, shards in grids)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), arguments.layers, arguments.width)
        ray.init(
            address="local",
            num_cpus=actors,
            include_dashboard=False,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
        for _ in range(arguments.rounds):
            for grid in grids:
                config = Config.parse(
                    {
                        "model": {"path": folder, "max_num_seqs": 1, "max_model_len": 256},
                        "group": {"num_workers": grid[0], "tensor_parallel_size": grid[1]},
                        "decode": {
                            "num_branches": arguments.branches,
                            "max_new_tokens": 64,
                            "block_size": 32,
                            "stop_at_eos": False,
                        },
                    }
                )
                forwards, steps, canvas = asyncio.run(measure_steps(config))
                forward_ms[grid] += forwards
                step_ms[grid] += steps
                canvases[grid] = canvas
        ray.shutdown()
    first = grids[0]
    rows = [["workers", "shards each", "forward ms", "step ms", "tokens"]]
    for grid in grids:
        same = "" if grid == first else "equal" if canvases[grid] == canvases[first] else "different"
        medians = [f"{statistics.median(values[grid]):.1f}" for values in (forward_ms, step_ms)]
        rows.append([*map(str, grid), *medians, same])
    print(markdown_table(rows))


if __name__ == "__main__":
    main()
