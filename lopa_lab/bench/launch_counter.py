"""Launches, copies and waits of a step on an accelerator, counted without one, on torch's meta device.

Tensors there have shapes and no numbers, so models of any size run, and whatever has the host look at a number fails.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lopa_lab.bench.step_plans import StepSize, step_of
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels.operators import LAUNCHES, NAMESPACE
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.transformer import Transformer

ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}

META = torch.device("meta")


class LaunchCounter(TorchDispatchMode):
    """Counts kernels, copies to the device, and copies from it, for each of which the host has to wait."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.launches: Counter[str] = Counter()
        self.copies_in = 0
        self.syncs = 0

    @property
    def total(self) -> int:
        """Kernels launched."""
        return self.launches.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:  # the parts of a composite operation are counted
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        there = any(isinstance(x, Tensor) and x.is_meta for x in (*args, *kwargs.values()))
        if func is torch.ops.aten._to_copy.default and there and kwargs.get("device") == torch.device("cpu"):
            self.syncs += 1
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        result = func(*args, **kwargs)
        outputs = result if isinstance(result, tuple | list) else (result,)
        if func is torch.ops.aten._to_copy.default and not there and result.is_meta:
            self.copies_in += 1
        elif func.namespace == NAMESPACE:
            self.launches[str(func)] += LAUNCHES[func._opname]
        elif any(isinstance(x, Tensor) and x.is_meta for x in outputs) and not (
            _is_view(func) or func._opname in ALLOCATIONS
        ):
            self.launches[str(func)] += 1
        return result


def _is_view(func: Any) -> bool:
    alias = [returned.alias_info for returned in func._schema.returns]
    return any(info is not None and not info.is_write for info in alias)


COMMITTED = 8
"""Positions that the step commits, and as many that it stages."""


def count_launches(config: NativeConfig, size: StepSize) -> LaunchCounter:
    """Count the launches of a worker's step of a native model in bf16 that commits, stages and scores.

    Attention is one call for all branches.
    """
    with META:
        model = Transformer(config)
    runner = BranchRunner(
        model.bfloat16(),
        max_num_seqs=size.requests,
        max_model_len=size.prefix + size.window + COMMITTED,
        attention=PackedAttention(),
    )
    mask = runner.vocabulary.mask_token_id
    later = replace(size, prefix=size.prefix + COMMITTED)
    first = size.plans(mask, step=1, staged=COMMITTED)
    second = later.plans(mask, step=2, committed=COMMITTED, staged=COMMITTED)
    with LaunchCounter():
        runner.execute(step_of(runner, first))
    plan = step_of(runner, second)
    counter = LaunchCounter()
    with counter:
        runner.execute(plan)
    return counter
