"""Registers operators with torch: the reference implementation for every device, the Triton kernel for CUDA.

As a torch operator, a kernel is one node of a traced graph and one call for a `TorchDispatchMode`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import torch
from torch.library import Library, infer_schema, register_fake

NAMESPACE = "lopa_ray"

P = ParamSpec("P")
R = TypeVar("R")

LAUNCHES: dict[str, int] = {}  # operator → number of kernels that one call launches on CUDA

CALLS: dict[str, Callable[..., Any]] = {}  # operator → the function that each call of it goes to

_library = Library(NAMESPACE, "DEF")
_log = logging.getLogger("lopa.kernels")


def operator(
    fake: Callable[..., Any], *, launches: int, mutates: tuple[str, ...] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a reference implementation an operator of that name. `fake` computes only shapes and dtypes, for tracing.
    `launches` is the number of kernels per call on CUDA, where `lopa_ray.kernels.triton.<name>.launch` is called with
    the operator's arguments. `mutates` names the arguments that it writes to. The reference is called directly on CPU,
    because torch's dispatcher takes 20 µs to return to Python, and where autograd records, because it sees through
    torch's own operations only."""

    def define(reference: Callable[P, R]) -> Callable[P, R]:
        name = reference.__name__.removeprefix("_")

        def on_cuda(*arguments: Any) -> Any:
            launch: Callable[..., Any] = _launcher(name) if triton_works() else reference
            return launch(*arguments)

        _library.define(infer_schema(reference, op_name=name, mutates_args=mutates))
        _library.impl(name, reference, "CompositeExplicitAutograd")
        _library.impl(name, on_cuda, "CUDA")
        register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
        overload = getattr(getattr(torch.ops, NAMESPACE), name).default
        LAUNCHES[name] = launches
        CALLS[name] = lambda tensor, *others, **named: (
            reference if tensor.is_cpu or torch.is_grad_enabled() else overload
        )(tensor, *others, **named)

        @wraps(reference)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            result: R = CALLS[name](*arguments, **named)
            return result

        return call

    return define


@cache
def _launcher(name: str) -> Callable[..., Any]:
    launch: Callable[..., Any] = import_module(f"lopa_ray.kernels.triton.{name}").launch
    return launch


def failure(trial: Callable[[], bool], wrong: str) -> str | None:
    """Why a kernel cannot be used: the error of its trial, or `wrong` if that returns false. None: it can."""
    try:
        return None if trial() else wrong
    # Of Triton, its compiler, the driver, or a kernel of torch without these sizes.
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


@cache
def triton_failure() -> str | None:
    """Why Triton does not work on this process's GPU, or None if it compiles and runs a kernel. It is tried once."""

    def is_right() -> bool:
        out = _launcher("silu_mul")(torch.ones(1, 32, device="cuda"))
        return bool((out - 1 / (1 + torch.e**-1)).abs().max() < 1e-5)

    return failure(is_right, "its results are wrong")


@cache
def triton_works() -> bool:
    """Whether operators launch their kernels here. If they do not, this is logged once, with the reason."""
    reason = triton_failure()
    if reason is not None:
        _log.warning("Triton does not work here, so steps take many times as long as they need (%s)", reason)
    return reason is None
