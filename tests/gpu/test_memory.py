"""Memory of steps of a model of real size. The record of a run has the number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("pydantic")

from lopa_lab.bench.model_shapes import model_to_measure
from lopa_lab.bench.step_plans import plan_of, step_of
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.runner import BranchRunner


def test_memory_does_not_grow_over_a_thousand_steps(
    record_property: Callable[[str, object], None],
) -> None:
    """Steps of all sizes, that stage and commit, of Dream-7B's shape in bf16 with the attention that auto takes."""
    options = {"device": "cuda", "dtype": "bfloat16", "max_num_seqs": 8, "max_model_len": 1024}
    with model_to_measure("", "dream-7b") as (_, model):
        engine = LocalEngine.from_config(Config.parse({"model": {**model, **options}}))
    runner: BranchRunner = engine.runner
    mask, held = runner.vocabulary.mask_token_id, []
    for number in range(1001):
        runner.cache.reset(0, None)
        rows, branches = 16 + 8 * (number % 11), 1 + number % 15
        steps = [
            plan_of(mask, branches, rows, step=2 * number + 1, staged=8),
            plan_of(mask, branches, rows, start=520, step=2 * number + 2, committed=8),
        ]
        runner.execute(step_of(runner, [steps[0]]))
        runner.execute(step_of(runner, [steps[1]]))
        if number % 500 == 0:
            torch.cuda.synchronize()
            held.append(torch.cuda.memory_allocated())
    record_property("Dream-7B's shape, 2,000 steps: memory held at the end, GiB", held[-1] / 2**30)
    assert held[2] - held[1] < 2**20
