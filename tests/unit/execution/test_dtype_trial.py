"""What `model.dtype` auto stands for."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution import dtype_trial
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.dtype_trial import product_seconds, resolve_dtype
from lopa_ray.execution.model_loader import resolve_auto
from lopa_ray.model.checkpoint_config import load_config
from lopa_ray.model.config import ModelConfig
from support.tiny_model import PROMPTS, SETTINGS, TINY_MODEL, load_tiny_model, tiny_config, tiny_spec


def take(monkeypatch: pytest.MonkeyPatch, float32: float, bfloat16: float) -> list[ModelConfig]:
    """Have products take so many seconds; returns the models that they are measured for."""
    asked: list[ModelConfig] = []

    def measured(where: torch.device, config: ModelConfig) -> dict[torch.dtype, float]:
        asked.append(config)
        return {torch.float32: float32, torch.bfloat16: bfloat16}

    monkeypatch.setattr(dtype_trial, "product_seconds", measured)
    return asked


@pytest.mark.parametrize(
    ("float32", "bfloat16", "name"), [(2.0, 1.0, "bfloat16"), (1.0, 2.0, "float32"), (1.05, 1.0, "float32")]
)
def test_auto_is_bfloat16_where_that_is_clearly_faster(
    float32: float, bfloat16: float, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, float32, bfloat16)
    assert resolve_dtype(DEVICES["cpu"], load_tiny_model().config) == name


def test_an_engine_names_what_auto_stands_for_and_decodes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = take(monkeypatch, 2.0, 1.0)
    results = []
    for dtype in ("auto", "bfloat16"):
        with LocalEngine.from_config(tiny_config(model={"dtype": dtype})) as engine:
            assert engine.config.model.dtype == "bfloat16"
            assert engine.runner.model.embed.weight.dtype == torch.bfloat16
            results.append(engine.generate(PROMPTS[2], SETTINGS["two_phase"]).token_ids)
    assert results[0] == results[1]
    assert len(asked) == 1


def test_a_shard_measures_a_product_of_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = take(monkeypatch, 1.0, 1.0)
    whole, halves = (
        tiny_spec(model={"dtype": "auto"}, group={"num_workers": 1, "tensor_parallel_size": size})
        for size in (1, 2)
    )
    assert resolve_auto(whole).dtype == resolve_auto(halves).dtype == torch.float32
    assert asked[0].intermediate_size == 2 * asked[1].intermediate_size


def test_memory_is_set_aside_for_the_largest_as_long_as_it_is_open() -> None:
    unknown, wide, narrow = (tiny_spec(model={"dtype": name}) for name in ("auto", "float32", "bfloat16"))
    assert unknown.weight_bytes == wide.weight_bytes > narrow.weight_bytes
    assert unknown.slots_bytes == wide.slots_bytes > narrow.slots_bytes


def test_products_of_models_of_both_implementations_are_measured() -> None:
    known_family = load_config(TINY_MODEL, "transformers")
    unknown_family = dataclasses.replace(known_family, native=None)
    for config in (load_tiny_model().config, known_family, unknown_family):
        seconds = product_seconds(torch.device("cpu"), config)
        assert set(seconds) == {torch.float32, torch.bfloat16}
        assert all(0 < value < 10 for value in seconds.values())
