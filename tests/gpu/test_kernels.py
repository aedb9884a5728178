"""Attention kernels on CUDA against the formula."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from lopa_ray.execution.attention_kernels import TOLERANCE
from support.kernel_contract import check_kernel

NO_FLASH = pytest.mark.skipif(
    importlib.util.find_spec("flash_attn") is None, reason="no package flash-attn here"
)
HALF = [dtype for dtype in TOLERANCE if dtype != torch.float32]
KERNELS = [
    *(("sdpa", dtype) for dtype in TOLERANCE),
    *(pytest.param("flash_attn", dtype, marks=NO_FLASH) for dtype in HALF),
    *(pytest.param("flex", dtype, marks=pytest.mark.long) for dtype in TOLERANCE),  # compiles
]


@pytest.mark.parametrize(("name", "dtype"), KERNELS, ids=str)
def test_a_kernel_computes_the_formula_on_views_of_a_cache(name: str, dtype: torch.dtype) -> None:
    check_kernel(name, "cuda", dtype)
