"""Groups of Ray actors on GPUs: two workers that share one, and, where there are two, one each over NCCL."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("pydantic")
ray = pytest.importorskip("ray")

from actors.engine import RayEngine
from lopa_ray.engine.local import LocalEngine
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

ON_GPU = {"device": "cuda"}
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
GROUPS: list[Any] = [
    pytest.param({"num_workers": 2, "num_accelerators": 0.5}, id="a GPU shared, object store"),
    pytest.param({"num_workers": 2, "transfer": "collective"}, id="a GPU each, NCCL", marks=TWO_GPUS),
    pytest.param(
        {"num_workers": 1, "tensor_parallel_size": 2}, id="a model over two GPUs, NCCL", marks=TWO_GPUS
    ),
]


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    ray.init(address="local", num_cpus=8, include_dashboard=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.mark.parametrize("group", GROUPS)
def test_same_tokens_as_in_one_process(group: dict[str, Any]) -> None:
    local = LocalEngine.from_config(tiny_config(model=ON_GPU))
    with RayEngine.from_config(tiny_config(model=ON_GPU, group=group)) as engine:
        for name, settings in SETTINGS.items():
            expected, found = (each.generate(PROMPTS, settings) for each in (local, engine))
            assert [(r.token_ids, r.steps) for r in found] == [(r.token_ids, r.steps) for r in expected], name
            first, *others = engine.checksums()
            # What was sent is equal bit for bit; what each worker computed itself may be rounded by shape.
            for other in others:
                assert all(one.agrees(two, 1e-4) for one, two in zip(first, other, strict=True)), name
