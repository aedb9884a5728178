"""What a capture on a fake CUDA device may do: no allocation on the host, no read of the device, no other memory than
what lasts.

A fake tensor has no numbers, so code that branches on one has to read it, and is refused with its line.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.device_log import READS, line_of_project
from support.recorded_graph import CaptureError

aten = torch.ops.aten


def storage_of(tensor: Tensor) -> StorageWeakRef:
    """What tells the memory of a fake tensor from that of others, and does not keep it."""
    return StorageWeakRef(tensor.untyped_storage())


class CheckedGraph(TorchDispatchMode):
    """With the interface of torch.cuda.CUDAGraph. A replay computes nothing.

    In torch's own captures a host tensor, a read and a copy to the host end the capture with an error; memory that is
    freed after the capture does not, and replays then read and write what others have there.
    """

    captured: ClassVar[list[CheckedGraph]] = []
    replays = 0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.outside: dict[StorageWeakRef, str] = {}
        """Memory of the device that was there before the capture → the line that used it first."""
        self._inside: set[StorageWeakRef] = set()

    def capture_begin(self, pool: object = None, **_: object) -> None:
        self.__enter__()

    def capture_end(self) -> None:
        self.__exit__(None, None, None)
        CheckedGraph.captured.append(self)

    def replay(self) -> None:
        expired = [line for storage, line in self.outside.items() if storage.expired()]
        if expired:
            raise CaptureError(f"the graph uses memory that is freed, at {expired}")
        CheckedGraph.replays += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        with self:  # inference mode leaves composite operations whole; their parts are checked
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        given = _tensors((args, kwargs))
        if func in READS or kwargs.get("pin_memory"):
            raise CaptureError(f"{func} in a capture, at {line_of_project()}")
        result = func(*args, **kwargs)
        results = _tensors(result)
        if any(tensor.device.type != "cuda" for tensor in given + results):
            raise CaptureError(f"{func} on the host in a capture, at {line_of_project()}")
        for tensor in given:
            if (storage := storage_of(tensor)) not in self._inside:
                self.outside.setdefault(storage, line_of_project())
        self._inside |= {storage_of(tensor) for tensor in results} - self.outside.keys()
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
