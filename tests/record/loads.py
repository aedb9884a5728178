"""Record what a real decoder's load looks like from outside, for tests of scaling.

    OMP_NUM_THREADS=1 PYTHONPATH=.:tests python tests/record/loads.py > tests/data/recorded_loads.jsonl

A tiny model decodes requests that arrive at random: hardly any for 10 seconds, then more than it can do for 12, then
none for 20. Each row is the `Load` of one second, on one worker. The clock is the process's own, so that other work
on the machine does not show: seconds of computing, and of waiting for requests.
"""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict

import torch

from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.scheduling.autoscaler import LoadMeter
from lopa_ray.scheduling.scheduler import Scheduler
from support.tiny_model import tiny_config

LOAD_STAGES = [(0.5, 10.0), (20.0, 12.0), (0.0, 20.0)]
"""Requests per second, seconds."""


def main() -> None:
    """Decode, and print a row per second."""
    torch.set_num_threads(1)
    settings = LopaSettings(max_new_tokens=64, num_branches=5, stop_at_eos=False)
    config = tiny_config()
    engine, scheduler, meter = (
        LocalEngine.from_config(config),
        Scheduler(config.model.max_num_seqs),
        LoadMeter(),
    )
    rng, arrivals, duration = random.Random(0), list[float](), 0.0
    for rate, seconds in LOAD_STAGES:
        at = duration
        while rate and (at := at + rng.expovariate(rate)) < duration + seconds:
            arrivals.append(at)
        duration += seconds
    now, next_row = 0.0, 1.0
    while now < duration:
        while arrivals and arrivals[0] <= now:
            arrivals.pop(0)
            scheduler.submit(engine.create_session([rng.randrange(1, 90) for _ in range(8)], settings))
        began = time.process_time()
        plans = scheduler.plan(num_workers=1)
        if plans:
            reports = [engine.runner.execute(plan) for plan in plans]
            scheduler.advance(reports)
            seconds = time.process_time() - began
            meter.record_step(sum(len(report.reports) for report in reports), seconds)
        else:
            seconds = 0.01
        now += seconds
        if now >= next_row:
            counts = {"in_flight": scheduler.in_flight, "waiting": scheduler.waiting}
            load = asdict(meter.take_load(workers=1, **counts))
            load |= {"step_s": round(load["step_s"], 5), "branches": round(load["branches"], 3)}
            print(json.dumps(load), flush=True)
            next_row += 1.0


if __name__ == "__main__":
    main()
