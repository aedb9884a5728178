"""Measures what forwards of a model cost here by their rows (`ForwardCosts`), once for each model, machine and way of
running it: a file in the cache folder has the result for later processes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import lopa_ray
from lopa_ray.cache_folder import cache_folder
from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.errors import SettingsError
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.model_files import local_fingerprint
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.forward_costs import ForwardCosts
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan
from lopa_ray.protocol.scoring import MAX_DRAFT_BEAMS, ChooseTokens, ContinuationDrafts

LANES = {4: (1, 4), 8: (1, 8), 16: (1, 16), 32: (2, 16), 64: (4, 16), 128: (8, 16), 256: (16, 16)}
"""Rows that are measured → branches of one request, and the rows of each."""

GUESS_ROWS = 4  # of each branch, instead, where the model has a draft head

PREFIX = 128  # cached positions before them
ROUNDS = 7  # at most; the smallest time counts
LIMIT_S = 2.0  # no round begins later
NO_SLOT_SETTINGS = {"path", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "prefix_cache"}

_log = logging.getLogger("lopa.costs")


def forward_costs(config: ExecutionConfig, runner: BranchRunner) -> ForwardCosts:
    """The costs of the model of a configuration without auto. The runner's slots stay as they are, but no step may run
    meanwhile. All shards of a model have to call this at the same time, and nothing is kept of theirs."""
    if runner.model.tp_group.size > 1:
        return measure_costs(runner)
    path = _file(_key(config))
    with suppress(OSError, ValueError, SettingsError):
        return ForwardCosts.of(
            config.group.replace(forward_costs=json.loads(path.read_text())).forward_costs or {}
        )
    costs = measure_costs(runner)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(dict(zip(costs.rows, costs.ms, strict=True))))
        part.replace(path)
    return costs


def measure_costs(runner: BranchRunner) -> ForwardCosts:
    """Milliseconds of `BranchRunner.execute`, without CUDA graphs: processor time where one thread computes, else wall
    time."""
    lanes = LANES
    if runner.vocabulary.has_draft_head:
        lanes = {rows: (rows // GUESS_ROWS, GUESS_ROWS) for rows in LANES}
    span = max(rows for _, rows in lanes.values())
    start = max(0, min(PREFIX, runner.cache.capacity - span))
    trial = BranchRunner(runner.model, max_num_seqs=1, max_model_len=start + span, attention=runner.attention)
    alone = runner.device.type == "cpu" and torch.get_num_threads() == 1 and runner.model.tp_group.size == 1
    clock = time.thread_time if alone else time.perf_counter
    best = dict.fromkeys(LANES, float("inf"))
    began = time.perf_counter()
    for round_ in range(-1, ROUNDS):
        for rows, size in lanes.items():
            plan = _step(trial, start, *size)
            before = clock()
            trial.execute(plan)
            if round_ >= 0:  # the first compiles, allocates, and fills caches
                best[rows] = min(best[rows], 1000 * (clock() - before))
        if round_ >= 0 and time.perf_counter() - began > LIMIT_S:
            break
    costs = ForwardCosts.of(with_padding(best, trial.packing_options.bucket))
    listed = ", ".join(f"{rows}: {ms:.2f}" for rows, ms in zip(costs.rows, costs.ms, strict=True))
    _log.info("milliseconds of a forward by its rows: %s", listed)
    return costs


def with_padding(ms_by_rows: Mapping[int, float], bucket: Callable[[int], int]) -> dict[int, float]:
    """The costs by ascending rows. Where padding gives a step of one more row the next measured number of rows, that
    row gets the cost of this number, so that no forward between the two counts as cheaper than it is."""
    padded = {rows + 1: ms_by_rows[more] for rows, more in pairwise(ms_by_rows) if bucket(rows + 1) >= more}
    return {**padded, **ms_by_rows}


def _step(trial: BranchRunner, start: int, branches: int, rows: int) -> StepPlan:
    """A step of masks after a cached prefix whose contents are arbitrary, all of which are scored, and followed by the
    drafts of a draft head."""
    stop, cached = start + rows, (range(start),) if start else ()
    trial.cache.reset(0, 1)
    trial.cache.mark_committed(0, cached)
    memory = ContinuationDrafts(MAX_DRAFT_BEAMS, 3) if trial.vocabulary.has_draft_head else None
    scoring = ChooseTokens(memory=memory)
    branch = Branch(((stop, stop),), range(start, stop), scoring=scoring)
    plan = Plan(1, start, (trial.vocabulary.mask_token_id,) * rows, (branch,) * branches, cached)
    return StepPlan(0, 1, (ScheduledRequest(1, 0, plan, tuple(range(branches))),))


def _key(config: ExecutionConfig) -> dict[str, Any]:
    """What the costs depend on."""
    model = config.model
    return {
        "weights": local_fingerprint(model) or model.path,
        "model": model.model_dump(mode="json", exclude=NO_SLOT_SETTINGS),
        "threads": torch.get_num_threads(),
        "hardware": DEVICES[model.device].hardware(),
        "versions": (lopa_ray.__version__, torch.__version__),
    }


def _file(key: dict[str, Any]) -> Path:
    return (
        cache_folder() / "forward-costs" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
    )
