"""bfloat16 on CPUs: packed weights give the products of plain ones, where they pay and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
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


@NEEDS_BFLOAT16
@pytest.mark.parametrize("rows", [1, 8, 64, 257])
@pytest.mark.parametrize("has_bias", [False, True])
def test_packed_products_are_those_of_the_weights(rows: int, has_bias: bool) -> None:
    draw = torch.Generator().manual_seed(rows)
    weight, x, bias = (
        torch.randn(size, generator=draw).bfloat16() for size in ((640, 512), (rows, 512), (640,))
    )
    held = packed.pack(weight)
    assert held.is_mkldnn and torch.equal(held.to_dense(), weight)
    expected = F.linear(x.double(), weight.double(), bias.double() if has_bias else None)
    got = packed.packed_product(x, held, bias if has_bias else None)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), expected, rtol=2**-7, atol=0.05)


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


@NEEDS_BFLOAT16
@pytest.mark.medium
def test_answers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> str | None:
        with LocalEngine.from_pretrained("demo", dtype="bfloat16") as engine:
            return engine.generate(PROBLEM).text

    with_packing = answer()
    monkeypatch.setattr(packed, "MIN_WEIGHTS", 1 << 40)
    assert answer() == with_packing
