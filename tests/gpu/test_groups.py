"""Groups of Ray actors on GPUs: two workers that share one, and, where there are two, one each over NCCL."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("pydantic")
pytest.importorskip("ray")

from actors.engine import RayEngine
from actors.transfer.kv_transfer import TRANSFERS
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.tensor_parallel import TensorParallelGroup
from lopa_ray.model.weights import Weights
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

ON_GPU = {"device": "cuda", "dtype": "float32"}
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
GROUPS: list[Any] = [
    pytest.param({"num_workers": 2, "num_accelerators": 0.5}, id="a GPU shared, through the host"),
    *(
        pytest.param({"num_workers": 2, "transfer": name}, id=f"a GPU each, {name}", marks=TWO_GPUS)
        for name in TRANSFERS
    ),
    pytest.param(
        {"num_workers": 1, "tensor_parallel_size": 2}, id="a model over two GPUs, NCCL", marks=TWO_GPUS
    ),
]


@pytest.mark.parametrize("group", GROUPS)
def test_same_tokens_as_in_one_process(local_ray: None, group: dict[str, Any]) -> None:
    local = LocalEngine.from_config(tiny_config(model=ON_GPU))
    with RayEngine.from_config(tiny_config(model=ON_GPU, group=group)) as engine:
        for name, settings in SETTINGS.items():
            expected, results = (decoder.generate(PROMPTS, settings) for decoder in (local, engine))
            # Soft inputs amplify rounding, which depends on the rows of a forward.
            same = [(r.token_ids, r.steps) for r in results] == [(r.token_ids, r.steps) for r in expected]
            assert same or name == "dmax", name
            first, *others = engine.checksums()
            # What was sent is equal bit for bit; what each worker computed itself may be rounded by shape.
            for other in others:
                assert all(one.agrees(two, 1e-4) for one, two in zip(first, other, strict=True)), name


@pytest.mark.parametrize("group", GROUPS)
def test_half_precision_fills_every_position(local_ray: None, group: dict[str, Any]) -> None:
    config = tiny_config(model={**ON_GPU, "dtype": "bfloat16"}, group=group)
    with RayEngine.from_config(config) as engine:
        mask = engine.vocabulary.mask_token_id
        for settings in SETTINGS.values():
            assert all(mask not in result.token_ids for result in engine.generate(PROMPTS, settings))
            first, *others = engine.checksums()
            assert all(
                one.agrees(two, 0.1) for other in others for one, two in zip(first, other, strict=True)
            )


def test_weights_are_published_once_and_unpacked_onto_the_device(local_ray: None) -> None:
    group = {"num_workers": 2, "num_accelerators": 0.5}
    local = LocalEngine.from_config(tiny_config(model=ON_GPU))
    with RayEngine.from_config(
        tiny_config(model=ON_GPU, group=group), runner_factory=on_the_device
    ) as engine:
        expected, result = (decoder.generate(PROMPTS[0], SETTINGS["d2f"]) for decoder in (local, engine))
        assert result.token_ids == expected.token_ids


def on_the_device(spec: ModelSpec, weights: Weights | None, tp_group: TensorParallelGroup) -> BranchRunner:
    """A runner factory that fails unless the weights were published, and end on the GPU."""
    assert weights is not None, "this worker read the weights for itself"
    runner = build_runner(spec, weights, tp_group)
    assert all(parameter.device.type == spec.config.model.device for parameter in runner.model.parameters())
    return runner
