"""`lopa bench constraints`: what structured output costs the master: making constraints, their size, time per step."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from ray import cloudpickle

from lopa_lab.bench.decoding import local_steps
from lopa_lab.bench.measurements import Measurements, Row
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine

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


def _measure(engine: LocalEngine, name: str, settings: GenerationSettings) -> Row:
    began = time.perf_counter()
    engine.create_session([5], settings)
    making = time.perf_counter() - began
    session = engine.create_session([5], settings)
    size = len(cloudpickle.dumps(session))
    times, sizes = [], []
    for step in local_steps(engine, [session], time.process_time):
        times.append(step.timing.plan + step.timing.select)
        sizes.append(len(cloudpickle.dumps(step.plan)))
    return {
        "constraint": name,
        "making it s": making,
        "sent per request kB": size / 1000,
        "step p50 ms": 1000 * statistics.median(times),
        "step max ms": 1000 * max(times),
        "plan kB": statistics.median(sizes) / 1000,
    }


def measure_constraints(model: str, tokens: int, branches: int) -> Measurements:
    """Decode `tokens` positions under each constraint. `model`: a checkpoint of which configuration and tokenizer are
    enough. Raises CheckpointError."""
    torch.set_num_threads(1)
    room = {"path": model, "load_format": "dummy", "max_num_seqs": 1, "max_model_len": tokens + 8}
    engine = LocalEngine.from_config(Config.load("demo", {"model": room}))
    base = engine.config.decode.replace(max_new_tokens=tokens, num_branches=branches)
    return Measurements(
        ("constraint",),
        [_measure(engine, name, base.replace(**constraint)) for name, constraint in CONSTRAINTS.items()],
        f"LoPA with {branches} branches on {tokens} positions of random weights, which leave positions as open as "
        "they can be: the worst case. Steps are the session's own work alone (planning, taking in reports), in "
        "processor time of one thread; making a constraint is wall time, once per constraint.",
    )
