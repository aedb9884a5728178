"""Ascend NPUs: all uses of torch-npu, which is imported where it is needed. The code was not run on hardware: a test
checks its names and keywords against the published package's (`tests/data/torch_npu.json`)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lopa_ray.extras import install_advice

if TYPE_CHECKING:
    from torch import Tensor


def unavailable_reason() -> str | None:
    try:
        import torch_npu
    except ImportError as error:
        return f"torch-npu cannot be imported ({error}); {install_advice('npu')}, and the CANN that its release names"
    if not torch_npu.npu.is_available():
        return "torch-npu finds no NPU; check the driver and ASCEND_RT_VISIBLE_DEVICES"
    return None


def attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """torch-npu's fused attention for inference, as a `LaneKernel`: q [T, H, E] over keys and values [K, L, E] → [T, H,
    E], all bf16 or fp16 dtype. E is a multiple of 16. The operator takes the whole slot, dense, and the number of
    keys."""
    import torch_npu

    heads, dim = q.shape[1:]
    output, _ = torch_npu.npu_fused_infer_attention_score(
        q.transpose(0, 1).contiguous()[None],
        _whole_slot(keys),
        _whole_slot(values),
        actual_seq_lengths_kv=[keys.shape[1]],
        num_heads=heads,
        num_key_value_heads=keys.shape[0],
        scale=dim**-0.5,
        input_layout="BNSD",
    )
    out: Tensor = output[0].transpose(0, 1)
    return out


def _whole_slot(view: Tensor) -> Tensor:
    """A view of the first rows [K, L, E] of a slot → a view of the whole slot [1, K, C, E]."""
    heads, _, dim = view.shape
    stride = view.stride(0)
    return view.as_strided((1, heads, stride // dim, dim), (heads * stride, stride, dim, 1))


def process_group(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """An HCCL process group on a store of torch.distributed, for the collective backend. It is registered nowhere."""
    import torch_npu

    options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
    options._timeout = timeout
    return torch_npu._C._distributed_c10d.ProcessGroupHCCL(store, rank, size, options)
