"""Packed weights on CPUs give the products of plain ones, where they pay or are asked for, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.number_format import number_format
from lopa_ray.kernels.padding import padded_rows, several_rows
from lopa_ray.model.linear import is_packed
from lopa_ray.model.quantization import packed
from support.verified_decode import PROBLEM

torch.set_num_threads(1)

NEEDS_BFLOAT16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this CPU does not multiply bfloat16"
)


def packed_names(**model: object) -> set[str]:
    """The parameters of the demo model that are packed."""
    with LocalEngine.from_config(Config.load("demo", {"model": model})) as engine:
        parameters = engine.runner.model.named_parameters()  # type: ignore[attr-defined]
        return {name for name, parameter in parameters if parameter.is_mkldnn}


@pytest.mark.parametrize(
    ("dtype", "off"),
    [pytest.param(torch.bfloat16, (2**-7, 0.05), marks=NEEDS_BFLOAT16), (torch.float32, (1e-5, 1e-4))],
)
@pytest.mark.parametrize("rows", [1, 8, 64, 257])
@pytest.mark.parametrize("has_bias", [False, True])
def test_packed_products_are_those_of_the_weights(
    dtype: torch.dtype, off: tuple[float, float], rows: int, has_bias: bool
) -> None:
    draw = torch.Generator().manual_seed(rows)
    weight, x, bias = (
        torch.randn(size, generator=draw).to(dtype) for size in ((640, 512), (rows, 512), (640,))
    )
    held = packed.pack(weight)
    assert held.is_mkldnn and torch.equal(held.to_dense(), weight)
    expected = F.linear(x.double(), weight.double(), bias.double() if has_bias else None)
    got = packed.packed_product(x, held, bias if has_bias else None)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=off[0], atol=off[1])


@pytest.fixture
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("threads", [1, 2], indirect=True)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(672, 224), (224, 608), (333, 42), (3072, 576)])
def test_a_row_in_float32_has_the_same_bits_among_any_number_of_rows(
    shape: tuple[int, int], has_bias: bool
) -> None:
    """With every number of rows that a step may have, not only those that the trial takes."""
    draw = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(size, shape[1], generator=draw) for size in (shape[0], 300))
    bias, held = torch.randn(shape[0]) if has_bias else None, packed.pack(weight)
    if not packed.keeps_bits(held, bias):
        pytest.skip("packed products depend on other rows on this CPU")
    expected = packed.packed_product(x, held, bias)
    for rows in sorted({several_rows(rows) for rows in range(1, 290)}):
        for first in (0, 7):
            part = slice(first, first + rows)
            assert torch.equal(packed.packed_product(x[part], held, bias), expected[part])


@pytest.mark.medium
def test_products_whose_rows_round_by_the_batch_are_not_packed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Then steps are padded as without packing, and a warning says so."""

    def rounds(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        by = len(x) * 2.0**-20 if weight.shape[0] == 1792 else 0.0
        return product(x, weight, bias) + by

    product = packed.packed_product
    monkeypatch.setattr(packed, "packed_product", rounds)
    monkeypatch.setattr(packed, "_tried", {})
    with LocalEngine.from_config(Config.load("demo", {"model": {"pack_float32": True}})) as engine:
        runner = engine.runner
        assert not is_packed(runner.model, torch.float32)
        assert runner.packing_options.bucket is padded_rows  # type: ignore[attr-defined]
    assert "model.pack_float32: some products" in caplog.text


@NEEDS_BFLOAT16
def test_packed_experts_have_their_own_rows() -> None:
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 64, 48, generator=draw).bfloat16()
    x = torch.randn(7, 48, generator=draw).bfloat16()
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    got = packed.packed_expert_product(x, [packed.pack(weight) for weight in weights], ends)
    expected = torch.cat(
        [F.linear(x[:2], weights[0]), F.linear(x[2:6], weights[2]), torch.zeros(1, 64).bfloat16()]
    )
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=0.05)


@NEEDS_BFLOAT16
@pytest.mark.medium
def test_large_layers_are_packed_in_bfloat16_alone() -> None:
    found = packed_names(dtype="bfloat16")
    assert "lm_head.weight" in found and "embed.weight" not in found
    assert all(name.endswith(("gate_up.weight", "lm_head.weight")) for name in found)
    for others in (
        {"dtype": "float32"},
        {"dtype": "bfloat16", "batch_invariant": True},
        {"quantization": "w8"},
    ):
        assert not packed_names(**others)


@pytest.mark.medium
def test_all_layers_are_packed_in_float32_where_it_is_asked_for() -> None:
    found = packed_names(dtype="float32", pack_float32=True)
    if not found:
        pytest.skip("packed products depend on other rows on this CPU")
    assert len(found) == 7 * 4 + 1 and "embed.weight" not in found


def answer(**model: object) -> str | None:
    with LocalEngine.from_config(Config.load("demo", {"model": model})) as engine:
        return engine.generate(PROBLEM).text


@NEEDS_BFLOAT16
@pytest.mark.medium
def test_answers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packing = answer(dtype="bfloat16")
    monkeypatch.setattr(packed, "MIN_WEIGHTS", 1 << 40)
    assert answer(dtype="bfloat16") == with_packing


@pytest.mark.medium
def test_answers_stay_in_float32() -> None:
    assert answer(pack_float32=True) == answer()


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cuda"},
        {"quantization": "w8"},
        {"batch_invariant": True},
        {"implementation": "transformers"},
    ],
)
def test_a_preset_that_packs_takes_what_needs_no_packing(changes: dict[str, Any]) -> None:
    model = Config.load("models/smollm2", {"model": {"dtype": "float32", **changes}}).model
    assert "packed" not in number_format(model, 1)


@pytest.mark.medium
def test_weights_that_change_are_packed_too() -> None:
    with LocalEngine.from_config(Config.load("demo", {"model": {"pack_float32": True}})) as engine:
        if not is_packed(engine.runner.model, torch.float32):
            pytest.skip("packed products depend on other rows on this CPU")
        before = engine.generate(PROBLEM)
        engine.update_weights(DEMO_MODEL)
        assert is_packed(engine.runner.model, torch.float32)
        assert engine.runner.packing_options.bucket is several_rows  # type: ignore[attr-defined]
        assert engine.generate(PROBLEM).token_ids == before.token_ids
