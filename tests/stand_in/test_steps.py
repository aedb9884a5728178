"""Whole steps on a fake CUDA device: one copy in, one copy out, and nothing else that the host waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lopa_ray.execution import flash_attention
from lopa_ray.execution.attention import LaneAttention
from lopa_ray.execution.flash_attention import FlashAttention, LaneTable
from lopa_ray.kernels.sdpa import sdpa
from lopa_ray.model.config import Fp8Scales, NativeConfig
from lopa_ray.model.experts_config import ExpertParallel
from lopa_ray.model.families.native import FAMILIES
from lopa_ray.model.linear import FORMATS
from lopa_ray.protocol.sampling_params import SamplingParams
from support.fake_cuda import AMPERE
from support.fake_steps import (
    FP8_SCALES,
    PREFIX,
    FakeShards,
    StepSetup,
    config_of,
    fp8_config_of,
    in_segments,
    launches_of,
)
from support.settings_strategies import SAMPLING_VALUES

ALL_FAMILIES = [family.name for family in FAMILIES]

SAMPLINGS = {
    **{name: SamplingParams(**{name: value}) for name, value in SAMPLING_VALUES.items()},
    "two-temperatures": SamplingParams(0.7, top_k=8, confidence_temperature=0.5),
    "filters": SamplingParams(0.7, top_p=0.9, top_k=8, top_k_first=True, ranking="margin"),
    "float64": SamplingParams(precision="float64", ranking="neg_entropy"),
    "float16": SamplingParams(precision="float16"),
    "min-tokens": SamplingParams(no_eos_before=PREFIX + 20, stop_token_ids=(3, 5)),
}


def max_launches(family: str) -> int:
    """Kernels of a step of the tiny model in bf16, with commits, staging and greedy scores."""
    config = config_of(family)
    # YaRN computes frequencies and a scale of queries.
    of_yarn = 0 if config.yarn is None else 16 + config.num_layers
    return of_yarn + launches_of(family, once=25, dense=9, experts=15, shared=4)


MORE_LAUNCHES = {"none": (0, 2), "w8a8": (18, 39), "fp8": (5, 7)}
"""Format → kernels of a layer beside those in bf16, in one piece and as a shard, where they are not as in w8."""


def more_launches(config: NativeConfig, *, shards: bool = False) -> int:
    return MORE_LAUNCHES.get(config.quantization, (12, 13))[shards] * config.num_layers


@pytest.mark.parametrize(
    ("family", "requests", "branches", "rows"),
    [
        *((family, 4, 3, 32) for family in ALL_FAMILIES),
        ("dream", 1, 1, 16),
        ("dream", 8, 1, 7),
        ("llada2", 1, 8, 64),
    ],
)
def test_families(family: str, requests: int, branches: int, rows: int) -> None:
    log = StepSetup(config_of(family)).log(requests, branches, rows)
    assert log.faults == []
    assert log.total <= max_launches(family), log.launches


def test_a_wait_is_found_and_named_with_its_line() -> None:
    def wait(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q.sum().item()
        return sdpa(q, keys, values)

    (fault,) = StepSetup(config_of("dream"), attention=LaneAttention(wait)).log(1, 1, 16).faults
    assert fault.startswith("waits: ") and "tests/stand_in/test_steps.py:" in fault


@pytest.mark.parametrize("family", ["dream", "llada2"])
def test_windows_in_segments(family: str) -> None:
    log = StepSetup(config_of(family)).log(change=in_segments)
    assert log.faults == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("family", ["dream", "llada2"])
def test_dtypes(family: str, dtype: torch.dtype) -> None:
    assert StepSetup(config_of(family), dtype).log().faults == []


@pytest.mark.parametrize("quantization", sorted(FORMATS.keys() - {"none"}))
@pytest.mark.parametrize("family", ["dream", "llada2"])
def test_weight_formats(family: str, quantization: Any) -> None:
    config = config_of(family, quantization)
    log = StepSetup(config).log()
    assert log.faults == []
    assert log.total <= max_launches(family) + more_launches(config)


FP8_LAUNCHES = ("aten._scaled_mm.default", "lopa_ray.quantize_groups.default")


@pytest.mark.parametrize("scales", FP8_SCALES, ids=lambda scales: scales.kind)
@pytest.mark.parametrize("family", ["dream", "sdar_moe", "llada2"])
def test_fp8_weights(family: str, scales: Fp8Scales) -> None:
    """A linear layer quantises its rows by one kernel, multiplies by one, and adds a bias by one. Experts take two
    products."""
    config = fp8_config_of(family, scales)
    log = StepSetup(config).log()
    assert log.faults == []
    floating = StepSetup(config.unfolded()).log().launches
    dense = config.num_layers if config.experts is None else config.experts.dense_layers
    sparse = config.num_layers - dense
    layers = (
        2 * config.num_layers + 2 * dense + (2 * sparse if config.experts and config.experts.shared else 0)
    )
    assert [log.launches[name] for name in FP8_LAUNCHES] == [layers, layers]
    assert log.launches["lopa_ray.grouped_matmul.default"] == 2 * sparse
    biases = config.num_layers if config.qkv_bias else 0
    assert log.total <= floating.total() + layers + biases


@pytest.mark.parametrize(("family", "quantization"), [("sdar_moe", "none"), ("llada2", "w8a8")])
def test_experts_on_a_gpu_without_a_grouped_product(family: str, quantization: Any) -> None:
    log = StepSetup(config_of(family, quantization), major=AMPERE).log()
    assert log.faults == []
    assert log.launches["lopa_ray.grouped_matmul.default"] > 0


@pytest.mark.parametrize("name", SAMPLINGS)
def test_samplings(name: str) -> None:
    """As many kernels for any number of requests."""
    one, four = (
        StepSetup(config_of("dream")).log(
            requests, change=lambda plan: replace(plan, sampling_params=SAMPLINGS[name])
        )
        for requests in (1, 4)
    )
    assert one.faults == four.faults == []
    assert one.total == four.total <= max_launches("dream") + 51


@pytest.mark.parametrize("family", ["dream", "llada2"])
def test_attention_lane_by_lane(family: str) -> None:
    setup = StepSetup(config_of(family), attention=LaneAttention(sdpa))
    assert setup.log(2, 2, 16, in_segments).faults == []


def test_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a function that has the shapes of the package's."""

    def attend(
        q: Tensor, keys: Tensor, values: Tensor, lanes: LaneTable, *, in_slots: bool
    ) -> tuple[Tensor, Tensor]:
        tables = (lanes.slots, lanes.starts, lanes.first_rows, lanes.cached_positions)
        assert all(table.dtype == torch.int32 for table in tables)
        return torch.empty_like(q), q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)

    monkeypatch.setitem(flash_attention.VERSIONS, 3, attend)
    log = StepSetup(config_of("dream"), attention=FlashAttention(3)).log()
    assert log.faults == []
    assert not any("slot_attention" in name for name in log.launches)


@pytest.mark.parametrize(
    ("family", "quantization", "expert_parallel"),
    [
        ("dream", "none", "auto"),
        ("dream", "w8a8", "auto"),
        ("llada2", "fp8", "auto"),
        ("sdar_moe", "w8", True),
        ("llada2", "none", False),
        ("sdar_moe", "w8a8", False),
    ],
)
def test_shards(family: str, quantization: Any, expert_parallel: ExpertParallel) -> None:
    """In each of two steps there is one wait for the other shards."""
    shards = FakeShards()
    config = config_of(family, quantization)
    if config.experts is not None:
        config = config.with_expert_parallel(expert_parallel)
    log = StepSetup(config, tp_group=shards).log()
    assert log.faults == []
    assert shards.waits == 2
    assert log.total <= max_launches(family) + more_launches(config, shards=True)


@pytest.mark.parametrize(("family", "scales"), [("dream", FP8_SCALES[0]), ("llada2", FP8_SCALES[1])])
def test_shards_of_fp8_weights(family: str, scales: Fp8Scales) -> None:
    shards = FakeShards()
    log = StepSetup(fp8_config_of(family, scales), tp_group=shards).log()
    assert log.faults == []
    assert shards.waits == 2
    assert all(log.launches[name] for name in FP8_LAUNCHES)


@pytest.mark.parametrize("name", ["filters", "top_logprobs", "min-tokens"])
def test_samplings_over_shards(name: str) -> None:
    sampling = SAMPLINGS[name]
    log = StepSetup(config_of("dream"), tp_group=FakeShards()).log(
        change=lambda plan: replace(plan, sampling_params=sampling)
    )
    assert log.faults == []
