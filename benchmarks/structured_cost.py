"""What structured output costs the master: time and size of constraints, and time per step.

    python benchmarks/structured_cost.py
    python benchmarks/structured_cost.py --model DIR    # another vocabulary: config.json and tokenizer are enough

Weights are random, so positions stay as open as they can be: the worst case. Only the session's own
work is timed (planning and taking in reports), in processor time; the model's forward is not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from ray import cloudpickle

from lopa_ray.config.config import Config
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.engine.local import LocalEngine
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.plan import StepPlan
from lopa_ray.scheduling.scheduler import Scheduler
from tables import markdown_table

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "format": "email"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
            "required": ["street", "number"],
        },
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    },
    "required": ["name", "age", "email", "address", "tags"],
}

CONSTRAINTS: dict[str, dict[str, Any]] = {
    "none": {},
    "one of 3 words": {"guided_choice": ["positive", "negative", "neutral"]},
    "a line of text and a number": {"guided_regex": r"[A-Z][a-z ]+\.\n#### \d{1,3}"},
    "any JSON object": {"guided_json": {"type": "object"}},
    "schema of 7 fields in 2 objects": {"guided_json": PERSON},
}


def measure(engine: LocalEngine, scheduler: Scheduler, settings: GenerationSettings) -> dict[str, str]:
    """One row of the table."""
    began = time.perf_counter()
    engine.create_session([5], settings)
    making = time.perf_counter() - began
    session = engine.create_session([5], settings)
    size = len(cloudpickle.dumps(session))
    scheduler.submit(session)
    times, sizes = [], []
    while scheduler.busy:
        began = time.process_time()
        plans: list[StepPlan] = scheduler.plan(num_workers=1)
        spent = time.process_time() - began
        sizes.append(len(cloudpickle.dumps(plans)))
        reports = [engine.runner.execute(plan) for plan in plans]
        began = time.process_time()
        events = scheduler.advance(reports)
        times.append(spent + time.process_time() - began)
        for event in events:
            if isinstance(event, RequestFailure):
                raise event.error
    return {
        "making it, once": f"{making:.2f} s",
        "sent per request": f"{size / 1000:.1f} kB",
        "per step, median": f"{1000 * statistics.median(times):.1f} ms",
        "worst": f"{1000 * max(times):.1f} ms",
        "plan": f"{statistics.median(sizes) / 1000:.1f} kB",
    }


def main() -> None:
    """Measure every constraint and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=256, help="positions per answer")
    parser.add_argument("--branches", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    changes = {
        "model": {"path": arguments.model, "load_format": "dummy", "max_num_seqs": 1, "max_model_len": 512}
    }
    engine = LocalEngine.from_config(Config.load("demo", changes))
    base = engine.config.decode.replace(max_new_tokens=arguments.tokens, num_branches=arguments.branches)
    rows, scheduler = [], Scheduler(max_num_seqs=1)
    for name, constraint in CONSTRAINTS.items():
        rows.append({"constraint": name, **measure(engine, scheduler, base.replace(**constraint))})
        print(json.dumps(rows[-1]), flush=True)
    print("\n" + markdown_table([list(rows[0]), *(list(row.values()) for row in rows)]))


if __name__ == "__main__":
    main()
