"""Number formats and graph mode on CUDA."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("pydantic")

from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels.int8_matmul import int8_matmul
from lopa_ray.model.config import Quantization
from lopa_ray.model.linear import FORMATS
from lopa_ray.model.native_implementation import load_model
from support.paths import MODELS
from support.tiny_model import DENSE_MODELS, PROMPTS, SETTINGS, TINY_MODEL

IDS = [5, 9, 127, 127, 3, 127, 60, 127] * 5


def runner(name: str, device: str, quantization: Quantization) -> BranchRunner:
    model = load_model(MODELS / name, dtype=torch.float32, device=device, quantization=quantization)
    return BranchRunner(model, max_num_seqs=1, max_model_len=64)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", SETTINGS)
def test_half_precision_decodes_every_position_the_same_twice(dtype: str, name: str) -> None:
    engine = LocalEngine.from_pretrained(TINY_MODEL, device="cuda", dtype=dtype, max_model_len=256)
    mask = engine.vocabulary.mask_token_id
    results = engine.generate(PROMPTS, SETTINGS[name])
    assert all(mask not in result.token_ids for result in results)
    assert [r.token_ids for r in engine.generate(PROMPTS, SETTINGS[name])] == [r.token_ids for r in results]


@pytest.mark.parametrize(("outputs", "inputs"), [(24, 17), (64, 96), (128, 1025), (2048, 2048)])
@pytest.mark.parametrize("rows", [1, 16, 17, 50])
def test_int8_products_are_exact(rows: int, outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (
        torch.randint(-127, 128, (n, inputs), generator=generator, dtype=torch.int8) for n in (rows, outputs)
    )
    a[0], b[0], b[1] = 127, 127, -127
    expected = a.to(torch.int64) @ b.to(torch.int64).t()
    assert torch.equal(int8_matmul(a.cuda(), b.cuda()).cpu().long(), expected)


@pytest.mark.parametrize("quantization", sorted(FORMATS.keys() - {"fp8"}))
@pytest.mark.parametrize("name", DENSE_MODELS)
def test_logits_are_those_of_the_cpu(name: str, quantization: Quantization) -> None:
    expected, logits = (runner(name, device, quantization).logits(IDS).cpu() for device in ("cpu", "cuda"))
    # An activation that lies between two int8 numbers may go either way.
    allowed = 2e-2 if FORMATS[quantization].sums_exactly else 1e-4
    assert (logits - expected).norm() / expected.norm() < allowed
