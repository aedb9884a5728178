"""CUDA graphs without a GPU: operator calls on fixed buffers, recorded once and made again on what these then have.

As with a CUDA graph, Python does not run in a replay, and shapes and addresses are those of the capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lopa_ray.kernels.operators import CALLS

aten = torch.ops.aten

READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.item.default,
    aten.nonzero.default,
    aten.masked_select.default,
}
"""Operations whose result, or the size of it, the host has to wait for."""


class CaptureError(RuntimeError):
    """Code does what a CUDA graph cannot have."""


@dataclass(frozen=True)
class Call:
    """A call of an operator, with its arguments and results: the buffers of every replay."""

    operator: Any
    args: Any
    kwargs: dict[str, Any]
    results: list[Tensor]
    own: list[bool]
    """Which results have memory of their own. The others are views of arguments, or arguments that were written to."""

    def again(self) -> None:
        """Make the call once more, and put its results where they were."""
        fresh = _tensors(self.operator(*self.args, **self.kwargs))
        for old, new, own in zip(self.results, fresh, self.own, strict=True):
            if old.shape != new.shape:
                raise CaptureError(
                    f"{self.operator}: {tuple(new.shape)} where the capture had {tuple(old.shape)}"
                )
            if own:
                old.copy_(new)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


class RecordedGraph(TorchDispatchMode):
    """With the interface of torch.cuda.CUDAGraph."""

    replays = 0
    """Of all graphs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[Call] = []

    def capture_begin(self, pool: object = None, **_: object) -> None:
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)

    def replay(self) -> None:
        RecordedGraph.replays += 1
        for call in self._calls:
            call.again()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in READS:
            raise CaptureError(f"{func} in a capture")
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        results = _tensors(result)
        own = [tensor.untyped_storage().data_ptr() not in given for tensor in results]
        self._calls.append(Call(func, args, kwargs, results, own))
        return result


class _Stream:
    """A stream where all streams are one."""

    def __init__(self, device: object = None) -> None:
        self.waited_for: list[object] = []

    def wait_stream(self, stream: object) -> None:
        self.waited_for.append(stream)


@contextmanager
def cuda_graphs_as(graph: type, free_bytes: int = 1 << 40) -> Iterator[None]:
    """In the context torch.cuda captures by graphs of that class, on a device with so much memory."""
    main = _Stream()
    with (
        patch.multiple(
            torch.cuda,
            CUDAGraph=graph,
            Stream=_Stream,
            stream=lambda _: nullcontext(),
            current_stream=lambda _=None: main,
            graph_pool_handle=lambda: (0, 1),
            synchronize=lambda *_: None,
            empty_cache=lambda: None,
            mem_get_info=lambda *_: (free_bytes, free_bytes),
            memory_allocated=lambda *_: 0,
            max_memory_allocated=lambda *_: 0,
            reset_peak_memory_stats=lambda *_: None,
        ),
        patch.object(torch._C, "_host_emptyCache", lambda: None, create=True),
    ):
        yield


@contextmanager
def recorded_graphs() -> Iterator[None]:
    """In the context graphs are recorded on the CPU. Each of the project's operators is one operation, as on a GPU."""
    operators = {name: getattr(torch.ops.lopa_ray, name).default for name in CALLS}
    with cuda_graphs_as(RecordedGraph), patch.dict(CALLS, operators):
        yield
