"""Python's calls on fake CUDA tensors, made by torch's dispatcher.

Some methods of tensors ask C++ for a CUDA device guard or context before anything is dispatched, which builds of torch
without CUDA do not have. `ByDispatcher` calls the same operators by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten

CASTS = {
    "bool": torch.bool,
    "double": torch.float64,
    "float": torch.float32,
    "half": torch.float16,
    "int": torch.int32,
    "long": torch.int64,
}
"""Methods that change the dtype."""

METHODS: dict[str, Callable[..., Any]] = {
    "__float__": lambda x: float(aten._local_scalar_dense(x)),
    "__getitem__": lambda x, key: _index(x, key),
    "__setitem__": lambda x, key, value: _set_index(x, key, value),
    "__invert__": aten.bitwise_not,
    "contiguous": aten.contiguous,
    "copy_": aten.copy_,
    "nonzero": aten.nonzero,
}


class ByDispatcher(TorchFunctionMode):
    """In its context these methods work on fake CUDA tensors."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        is_method = getattr(Tensor, name, None) is func and args[0].device.type == "cuda"
        if is_method and name in CASTS:
            return aten._to_copy(args[0], dtype=CASTS[name])
        if is_method and name in METHODS:
            return METHODS[name](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _index(x: Tensor, key: Any) -> Tensor:
    """x[key], with views where Python's indexing makes views, and one `index` for tensors and lists."""
    keys = list(key) if isinstance(key, tuple) else [key]
    if Ellipsis in [part for part in keys if not isinstance(part, Tensor)]:
        at = next(index for index, part in enumerate(keys) if part is Ellipsis)
        missing = x.dim() - sum(part is not None and part is not Ellipsis for part in keys)
        keys[at : at + 1] = [slice(None)] * missing
    dim = 0
    tensors: dict[int, Tensor] = {}
    for part in keys:
        if part is None:
            x = aten.unsqueeze(x, dim)
        elif isinstance(part, slice):
            if part != slice(None):
                x = aten.slice(x, dim, part.start, part.stop, part.step or 1)
        elif isinstance(part, Tensor | list):
            indices = _as_indices(torch.as_tensor(part))
            tensors |= {dim + at: each for at, each in enumerate(indices)}
            dim += len(indices) - 1
        else:
            x = aten.select(x, dim, int(part))
            continue
        dim += 1
    if tensors:
        x = aten.index(x, [tensors.get(at) for at in range(max(tensors) + 1)])
    return x


def _set_index(x: Tensor, key: Any, value: Any) -> None:
    keys = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, Tensor) for part in keys):
        if not all(isinstance(part, Tensor) for part in keys):
            raise NotImplementedError(f"assignment to {keys}, tensors and others mixed")
        given = value if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
        aten.index_put_(x, [index for part in keys for index in _as_indices(part)], given)
    elif isinstance(value, Tensor):
        aten.copy_(_index(x, key), value)
    else:
        aten.fill_(_index(x, key), value)


def _as_indices(key: Tensor) -> Sequence[Tensor]:
    """Integer indices of each dimension that a tensor of indices, or a mask, stands for."""
    indices: Sequence[Tensor] = aten.nonzero(key).unbind(1) if key.dtype == torch.bool else (key,)
    return indices
