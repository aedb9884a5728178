"""What every attention kernel must do, wherever it runs."""

from __future__ import annotations

import torch

from lopa_ray.execution.attention_kernels import KERNELS, TOLERANCE, reference_attention


def check_kernel(name: str, device: str, dtype: torch.dtype) -> None:
    """It computes the formula on views of a cache, with as many or fewer KV heads than query heads."""
    generator = torch.Generator().manual_seed(0)
    for rows, num_keys, heads, kv_heads in ((1, 1, 4, 2), (7, 40, 4, 2), (16, 16, 4, 4), (33, 90, 6, 1)):
        cache = torch.randn(2, kv_heads, 96, 16, generator=generator).to(device, dtype)
        q = torch.randn(rows + 3, heads, 16, generator=generator).to(device, dtype)[3:]
        keys, values = cache[:, :, :num_keys]
        with torch.inference_mode():
            output = KERNELS[name](q, keys, values)
        assert output.shape == q.shape and output.dtype == dtype
        torch.testing.assert_close(
            output.float(), reference_attention(q, keys, values), atol=TOLERANCE[dtype], rtol=0
        )
