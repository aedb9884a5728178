"""DeviceLog: what a piece of code asks of a fake CUDA device, operation by operation."""

from __future__ import annotations

import traceback
import weakref
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lopa_ray.kernels.operators import LAUNCHES, NAMESPACE
from support.paths import ROOT

aten = torch.ops.aten

ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}

READS = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default}
"""Operations whose result the host has to wait for: a number, or a size that depends on numbers."""


_pinned: list[weakref.ref[Tensor]] = []
"""Pinned memory, which may outlive the log in which it was allocated."""


class DeviceLog(TorchDispatchMode):
    """Logs the copies, waits and kernels of code that runs in its context, inside of `fake_cuda`.

    A read of a single number is logged as a wait and answered with 1, so that code goes on behind it. Each entry names
    the line of the project that asked for it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: Counter[str] = Counter()
        """Operation → kernels that it launched."""
        self.copies_in: list[str] = []
        self.copies_out: list[str] = []
        self.waits: list[str] = []
        """Reads of numbers, and copies in that are not asynchronous. Copies out are not in it; each is a wait, too."""
        self.mixes: list[str] = []
        """Operations on tensors of host and device together. torch allows that for host tensors of one number only."""
        self.strided: list[str] = []
        """Arguments of this project's operators that are not contiguous. Their launch functions copy these first."""

    @property
    def total(self) -> int:
        """Kernels launched."""
        return self.launches.total()

    @property
    def faults(self) -> list[str]:
        """What a step must not do: anything but one copy in and one copy out has the host wait, or a kernel added."""
        copies = {"in": self.copies_in, "out": self.copies_out}
        wrong = {f"copies {name}": lines for name, lines in copies.items() if len(lines) != 1}
        wrong |= {"waits": self.waits, "host and device mixed": self.mixes, "not contiguous": self.strided}
        return [f"{what}: {lines}" for what, lines in wrong.items() if lines or what.startswith("copies")]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        with self:  # inference mode leaves composite operations whole; their parts are logged
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        kinds = {tensor.device.type for tensor in tensors}
        if func is aten.empty.memory_format and kwargs.get("pin_memory"):
            return self._pinned_buffer(*args, **kwargs)
        if func is aten._to_copy.default and kwargs.get("device") is not None:
            target = torch.device(kwargs["device"]).type
            if kinds == {"cuda"} and target == "cpu":
                return self._copy_out(args[0], kwargs.get("dtype"))
            if kinds == {"cpu"} and target == "cuda":
                return self._copy_in(args[0], kwargs)
        if func in READS and "cuda" in kinds:
            self.waits.append(f"{func} at {line_of_project()}")
            if func is aten._local_scalar_dense.default:
                return 1.0 if args[0].dtype.is_floating_point else 1
            if func is aten.equal.default:
                return True
        if (
            kinds == {"cpu"}
            and not any(isinstance(tensor, FakeTensor) for tensor in tensors)
            and (kwargs.get("device") is None or torch.device(kwargs["device"]).type == "cpu")
        ):
            with unset_fake_temporarily():  # the host's own arrays have numbers
                return func(*args, **kwargs)
        self._check_arguments(func, args, kinds)
        result = func(*args, **kwargs)
        non_blocking = func is aten.copy_.default and bool(kwargs.get("non_blocking") or any(args[2:]))
        self._count(func, tensors, result, non_blocking=non_blocking)
        return result

    def _check_arguments(self, func: Any, args: Any, kinds: set[str]) -> None:
        if kinds == {"cpu", "cuda"} and func is not aten.copy_.default:
            self.mixes.append(f"{func} at {line_of_project()}")
        if func.namespace == NAMESPACE:
            self.strided += [
                f"{func._opname}, argument {at}, {tuple(arg.shape)} with strides {arg.stride()}, at {line_of_project()}"
                for at, arg in enumerate(args)
                if isinstance(arg, Tensor) and not arg.is_contiguous()
            ]

    def _count(self, func: Any, tensors: list[Tensor], result: Any, *, non_blocking: bool) -> None:
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if func is aten.copy_.default and {tensor.device.type for tensor in tensors} == {"cpu", "cuda"}:
            if tensors[0].is_cuda:
                self._log_copy_in(tensors[1], non_blocking)
            else:
                self.copies_out.append(line_of_project())
            return
        if func.namespace == NAMESPACE and any(tensor.is_cuda for tensor in tensors):
            self.launches[str(func)] += LAUNCHES[func._opname]
            return
        if not any(tensor.is_cuda for tensor in made):
            return
        if tensors and all(tensor.device.type == "cpu" for tensor in tensors):
            self.copies_in.append(f"{func} at {line_of_project()}")
            return
        alias = [returned.alias_info for returned in func._schema.returns]
        is_view = any(info is not None and not info.is_write for info in alias)
        if not is_view and func._opname not in ALLOCATIONS:
            self.launches[str(func)] += 1

    # Copies, with the numbers of the host's end

    def _pinned_buffer(self, *args: Any, **kwargs: Any) -> Tensor:
        with unset_fake_temporarily():
            buffer = torch.empty(*args, dtype=kwargs.get("dtype"))
        _pinned.append(weakref.ref(buffer))
        return buffer

    def _copy_in(self, host: Tensor, kwargs: Any) -> Tensor:
        self._log_copy_in(host, bool(kwargs.get("non_blocking")))
        return torch.empty(host.shape, dtype=kwargs.get("dtype") or host.dtype, device=kwargs["device"])

    def _log_copy_in(self, host: Tensor, non_blocking: bool) -> None:
        self.copies_in.append(line_of_project())
        is_pinned = not isinstance(host, FakeTensor) and any(
            host.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
            for reference in _pinned
            if (buffer := reference()) is not None
        )
        if not (non_blocking and is_pinned):
            self.waits.append(f"synchronous copy in at {line_of_project()}")

    def _copy_out(self, there: Tensor, dtype: torch.dtype | None) -> Tensor:
        self.copies_out.append(line_of_project())
        with unset_fake_temporarily():
            return torch.zeros(there.shape, dtype=dtype or there.dtype)


def line_of_project() -> str:
    """The innermost line of the project, or of a test, that is running."""
    for frame in reversed(traceback.extract_stack()):
        path = frame.filename
        if path.startswith(str(ROOT)) and "site-packages" not in path and "/tests/support/" not in path:
            return f"{path.removeprefix(f'{ROOT}/')}:{frame.lineno} {frame.line}"
    return "an unknown line"
