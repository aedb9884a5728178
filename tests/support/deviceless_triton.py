"""Triton for an NVIDIA GPU that is not there: real launch functions, keys and binaries, and no launch.

In the contexts of this module the project's operators call their Triton launch functions for tensors of any device.
Outputs are allocated, and kernels write nothing to them.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

import lopa_ray.execution.attention_backends
import lopa_ray.execution.runner  # noqa: F401  # it defines all operators
from lopa_ray import kernels
from lopa_ray.kernels.operators import CALLS, LAUNCHES

SHARED_MEMORY = {80: 166_912, 90: 232_448, 100: 232_448}
"""Bytes of shared memory that a block may have, by kind of GPU."""

MAX_THREADS = 1024


class _Utils:
    def __init__(self, arch: int) -> None:
        self._arch = arch

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        return 1, 1, 32, 0, MAX_THREADS

    def unload_module(self, module: int) -> None: ...

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_MEMORY[self._arch], "max_num_regs": 65_536, "warpSize": 32}


class DevicelessDriver(DriverBase):
    """A driver whose kernels are loaded and launched without effect."""

    def __init__(self, arch: int) -> None:
        super().__init__()
        self.arch = arch
        self.utils = _Utils(arch)
        self.launches = 0

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            self.launches += 1

        return launch

    @classmethod
    def is_active(cls) -> bool:
        """Whether it has a device: Triton is never to take it by itself."""
        return False

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError


@contextmanager
def deviceless_triton(arch: int = 90) -> Iterator[DevicelessDriver]:
    """In the context each operator of `lopa_ray.kernels` is its launch function, for a GPU of that kind."""
    active, made = driver._active, DevicelessDriver(arch)
    forget_variants()
    try:
        driver.set_active(made)
        with patch.dict(CALLS, {operator: with_indices_of_zero(operator) for operator in CALLS}):
            yield made
    finally:
        driver._active = active
        forget_variants()


class Variants:
    """The variants of kernels that Triton would compile, by its own keys."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, str]] = set()
        """Of kernels, with their names."""

    def hook(self, *, fn: Any, key: str, **_: Any) -> bool:
        """Keep the key of a kernel that is not compiled yet, and have Triton not compile it."""
        self._keys.add((fn.name.rpartition(".")[2], key))
        return True

    @property
    def by_kernel(self) -> Counter[str]:
        """Kernel → number of variants."""
        return Counter(name for name, _ in self._keys)


@contextmanager
def recorded_variants() -> Iterator[Variants]:
    """In the context, which is one of `deviceless_triton`, launches are recorded, and nothing is compiled."""
    variants = Variants()
    with patch.object(knobs.runtime, "jit_cache_hook", variants.hook):
        yield variants


def module_of(operator: str) -> Any:
    """The module of an operator's kernel."""
    return importlib.import_module(f"{kernels.__name__}.triton.{operator}")


def kernels_of(operator: str) -> list[JITFunction[Any]]:
    """The functions of an operator's module that Triton compiles, those that others call included."""
    return [value for value in vars(module_of(operator)).values() if isinstance(value, JITFunction)]


def compiled_kernels() -> dict[str, list[Any]]:
    """Operator → its kernels that have been compiled in this context."""
    return {
        operator: [
            kernel
            for function in kernels_of(operator)
            for cache, *_ in function.device_caches.values()
            for kernel in cache.values()
        ]
        for operator in LAUNCHES
    }


def forget_variants() -> None:
    """Drop all that is compiled in this process."""
    for operator in LAUNCHES:
        for function in kernels_of(operator):
            function.device_caches.clear()


def with_indices_of_zero(operator: str) -> Callable[..., Any]:
    """An operator's launch function. Whole numbers on the host are 0 in its results: no kernel writes them, and torch's
    operations may take them for indices."""

    def call(*arguments: Any, **named: Any) -> Any:
        results = module_of(operator).launch(*arguments, **named)
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor) and result.dtype == torch.int64 and result.is_cpu:
                result.zero_()
        return results

    return call
