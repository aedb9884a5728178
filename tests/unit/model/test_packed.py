"""Packed weights on CPUs give the products of plain ones, where they pay or are asked for, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.kernels.padding import several_rows
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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(672, 224), (224, 608), (333, 42), (3072, 576)])
def test_a_row_in_float32_has_the_same_bits_among_any_number_of_rows(
    threads: int, shape: tuple[int, int]
) -> None:
    """With every number of rows that a step may have, not only those that the trial takes."""
    torch.set_num_threads(threads)
    try:
        draw = torch.Generator().manual_seed(0)
        weight, x = (torch.randn(size, shape[1], generator=draw) for size in (shape[0], 300))
        if not packed.keeps_bits(weight):
            pytest.skip("packed products depend on other rows on this CPU")
        held = packed.pack(weight)
        expected = packed.packed_product(x, held)
        for rows in sorted({several_rows(rows) for rows in range(1, 290)}):
            for first in (0, 7):
                part = slice(first, first + rows)
                assert torch.equal(packed.packed_product(x[part], held), expected[part])
    finally:
        torch.set_num_threads(1)


def test_products_whose_rows_round_by_the_batch_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return product(x, weight, bias) + len(x) * 2.0**-20

    product = packed.packed_product
    weight = torch.randn(31, 29)  # a shape of no other test: trials are kept
    assert not packed.keeps_bits(weight.bfloat16())
    monkeypatch.setattr(packed, "packed_product", rounds)
    assert not packed.keeps_bits(weight)


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
    if not packed.keeps_bits(torch.randn(224, 224)):
        pytest.skip("packed products depend on other rows on this CPU")
    found = packed_names(dtype="float32", pack_float32=True)
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
    ("others", "words"),
    [
        (
            {"device": "cuda"},
            "pack_float32 true with device cuda: it is for plain products on CPUs; set device to cpu",
        ),
        ({"quantization": "w8"}, "pack_float32 true with quantization w8"),
        ({"batch_invariant": True}, "pack_float32 true with batch_invariant True"),
        ({"implementation": "transformers"}, "pack_float32 True with implementation transformers"),
    ],
)
def test_packing_is_refused_where_it_does_nothing(others: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        ModelSettings(pack_float32=True, **others)
