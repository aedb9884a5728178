"""A CUDA device that is not there: fake tensors on `cuda:0`, on a build of torch without CUDA.

They have shapes, dtypes and strides, and no numbers. What torch refuses on a GPU it refuses here, such as an operation
on tensors of two devices. The capability of the device is a parameter, because code asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lopa_ray.kernels.fp8 import has_fp8_kernel
from lopa_ray.kernels.int8_matmul import has_int8_kernel
from support.fake_cuda_calls import ByDispatcher

CUDA = torch.device("cuda", 0)

HOPPER, AMPERE = 9, 8
"""Major compute capabilities."""


class _Mode(FakeTensorMode):
    avoid_device_init = True


@contextmanager
def fake_cuda(major: int = HOPPER) -> Iterator[None]:
    """In the context new tensors are fake, and those on `CUDA` need no GPU.

    What torch answers about the device is for a GPU of that compute capability. Trials of kernels cannot run; their
    results are not remembered.
    """
    properties = SimpleNamespace(
        major=major, minor=0, multi_processor_count=132, total_memory=80 << 30, name="fake"
    )
    mode = _Mode(allow_non_fake_inputs=True)  # before the patches: it asks whether there is a GPU
    torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]  # a guard without effect
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (major, 0),
        "_lazy_init": lambda: None,
    }
    trials = (has_int8_kernel, has_fp8_kernel)
    for trial in trials:
        trial.cache_clear()
    try:
        with patch.multiple(torch.cuda, **answers), mode, ByDispatcher():
            yield
    finally:
        for trial in trials:
            trial.cache_clear()
