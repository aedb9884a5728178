"""WeightFormat: how linear layers hold their weights. A format is one file, and a line of `weight_formats.py`.

Shape suffixes: R rows, N experts, I inputs, O outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from lopa_ray.model.config import NativeConfig
from lopa_ray.model.tensor_parallel import TensorParallelGroup

Shape: TypeAlias = tuple[int, int]
"""Of a layer's weights: outputs and inputs."""

Shards: TypeAlias = TensorParallelGroup | None


class WeightFormat(ABC):
    sums_exactly: ClassVar[bool] = False
    """Whether products are integers, so that a model in shards has the bits of the whole one."""

    @abstractmethod
    def linear(
        self, config: NativeConfig, shape: Shape, group: Shards = None, bias: bool = False
    ) -> nn.Module:
        """A layer of x [R, I] → [R, O], in the dtype of x. `group`: the shards that have the other inputs, if the layer
        has a part of them; then it has no bias."""

    @abstractmethod
    def experts(self, config: NativeConfig, count: int, shape: Shape, group: Shards = None) -> nn.Module:
        """A layer of so many experts: sorted rows x [S, I] and their `SortedRows` → [S, O], in the dtype of x. What is
        behind the last expert's rows has no value. `group`: as above."""


class QuantizedLayer(nn.Module, ABC):
    """A layer whose weights [..., O, I] are stored in another dtype than the model's, beside scales in fp32."""

    stored_dtype: ClassVar[torch.dtype]
    scale_name: ClassVar[str]

    @abstractmethod
    def encode(self, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Floating weights [..., O, I] as attributes of the layer: the scales, fp32 [..., O] or [..., O, G], and then
        the weights in `stored_dtype`."""

    def hold(self, attribute: str, value: Tensor) -> None:
        """Make `value`, weights or scales as `encode` gives them, the layer's own (see `encode`)."""
        setattr(self, attribute, nn.Parameter(value, requires_grad=False))

    def probe_kernel(self) -> None:
        """Find out which product the layer uses: the host waits for that, and in a forward a shard may be lost."""


def frozen(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """Room for weights or scales of that shape [...] and `dtype`, which are never trained."""
    return nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
