"""Registers operators with torch: the reference implementation for every device, the Triton kernel for CUDA.

As a torch operator, a kernel is one node of a traced graph and one call for a `TorchDispatchMode`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

NAMESPACE = "lopa_ray"

LAUNCHES: dict[str, int] = {}
"""Operator → number of kernels that one call launches on CUDA."""

_library = Library(NAMESPACE, "DEF")
_log = logging.getLogger("lopa.kernels")


def define(
    schema: str,
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    launches: int,
    on_cpu: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Define the operator of a schema, and return a function that calls it.

    `fake` computes only shapes and dtypes, for tracing. `launches` is the number of kernels per call on CUDA, where
    `lopa_ray.kernels.triton.<name>.launch` is called with the operator's arguments. `on_cpu` is called directly for
    tensors on CPU, because torch's dispatcher takes 20 µs to return to Python. Without it, CPUs run the reference.
    """
    name = schema.partition("(")[0]

    def on_cuda(*arguments: Any) -> Any:
        return (_launcher(name) if triton_works() else reference)(*arguments)

    _library.define(schema)
    _library.impl(name, reference, "CompositeExplicitAutograd")
    _library.impl(name, on_cuda, "CUDA")
    register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    LAUNCHES[name] = launches
    operator: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default
    if on_cpu is None:
        return operator

    def call(tensor: Tensor, *arguments: Any) -> Any:
        return (on_cpu if tensor.is_cpu else operator)(tensor, *arguments)

    return call


def is_differentiable() -> bool:
    """Whether to call the reference in place of the operator: for autograd in training."""
    return torch.is_grad_enabled()


@cache
def _launcher(name: str) -> Callable[..., Any]:
    launch: Callable[..., Any] = import_module(f"lopa_ray.kernels.triton.{name}").launch
    return launch


@cache
def triton_failure() -> str | None:
    """Why Triton does not work on this process's GPU, or None if it compiles and runs a kernel. It is tried once."""
    try:
        launch = _launcher("silu_mul")
        out = launch(torch.ones(1, 32, device="cuda"))
        works = bool((out - 1 / (1 + torch.e**-1)).abs().max() < 1e-5)
    # Any exception of Triton, its compiler or the driver means that Triton does not work; it is returned as the reason.
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return None if works else "its results are wrong"


@cache
def triton_works() -> bool:
    """Whether operators launch their kernels here. If they do not, this is logged once, with the reason."""
    reason = triton_failure()
    if reason is not None:
        _log.warning("Triton does not work here, so steps take many times as long as they need (%s)", reason)
    return reason is None
