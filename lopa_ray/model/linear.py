"""Linear layers, whose weights are in one of the formats, and the layers of all experts of a projection.

Shape suffixes: R rows, S sorted rows, N experts, I inputs, O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lopa_ray.errors import SettingsError
from lopa_ray.kernels.invariant_linear import place_matters
from lopa_ray.kernels.sort_rows import SortedRows
from lopa_ray.model.config import NativeConfig, Quantization
from lopa_ray.model.draft_adapter import DraftAdapter
from lopa_ray.model.quantization.fp8_format import Fp8
from lopa_ray.model.quantization.int8_format import W8, W8A8
from lopa_ray.model.quantization.weight_format import HeldWeights, WeightFormat
from lopa_ray.model.tensor_parallel import TensorParallelGroup

FORMATS: dict[Quantization, type[WeightFormat]] = {"none": WeightFormat, "w8": W8, "w8a8": W8A8, "fp8": Fp8}


class Linear(HeldWeights):
    """A linear layer with weights [O, I], and a `DraftAdapter` beside them if `draft_width` is above 0. `tp_group`: the
    shards that have the other inputs, if it has a part of them; then it has no bias."""

    def __init__(
        self,
        config: NativeConfig,
        shape: tuple[int, int],
        tp_group: TensorParallelGroup | None = None,
        *,
        bias: bool = False,
        quantization: Quantization | None = None,
        draft_width: int = 0,
    ) -> None:
        """`quantization`: the format; None: the model's. `draft_width`: see `NativeConfig.draft_width`."""
        kind = FORMATS[quantization or config.quantization]
        weight_format = kind(config, shape[1], is_cut=tp_group is not None)
        super().__init__(weight_format, shape, tp_group, bias=bias)
        self.draft: DraftAdapter | None = None
        if draft_width:
            self.draft = DraftAdapter(config, shape, draft_width, tp_group if kind.sums_exactly else None)

    def forward(self, x: Tensor, draft_rows: Tensor | None = None) -> Tensor:
        """x [R, I] → [R, O], in the dtype of x. `draft_rows`, [R, 1] in the same dtype: 1 for rows that go through the
        draft adapter too, if there is one; else 0."""
        out = self.format.product(self, x)
        if self.draft is not None and draft_rows is not None:
            out = out + self.draft(x, draft_rows)
        return out if self.format.sums_exactly else self.tp_group.all_reduce(out)


class ExpertLinear(HeldWeights):
    """A linear layer per expert, with weights [N, O, I]. `tp_group`: as in `Linear`, but products that are not exact
    are left to be added up once for the whole layer."""

    def __init__(
        self, config: NativeConfig, shape: tuple[int, int, int], tp_group: TensorParallelGroup | None = None
    ) -> None:
        weight_format = FORMATS[config.quantization]
        super().__init__(weight_format(config, shape[2], is_cut=tp_group is not None), shape, tp_group)

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        """Sorted rows x [S, I] → [S, O], in the dtype of x. Rows after the last expert's have no value."""
        return self.format.expert_product(self, x, rows)


def prepare(model: nn.Module) -> None:
    """Prepare the layers of `model`, when all have their weights; see `WeightFormat.prepare`."""
    for layer in model.modules():
        if isinstance(layer, HeldWeights):
            layer.format.prepare(layer)


def pack(model: Any, *, float32: bool = False) -> None:
    """Pack the weights of a model's layers, in place, where products take less time then, also in fp32 if `float32` is
    set; see `WeightFormat.pack`. Such a model is not saved, and its weights are not shared with other processes."""
    for layer in _layers(model):
        layer.format.pack(layer, float32=float32)


def is_packed(model: Any, dtype: torch.dtype) -> bool:
    """Whether the weights of all layers of a model are packed, in this dtype."""
    layers = _layers(model)
    return bool(layers) and all(layer.weight.is_mkldnn and layer.weight.dtype == dtype for layer in layers)


def _layers(model: Any) -> list[HeldWeights]:
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return [layer for layer in modules if isinstance(layer, HeldWeights)]


def check_places(model: nn.Module) -> None:
    """Raise SettingsError if this CPU's products depend on the place of a row, with torch's present threads."""
    threads = torch.get_num_threads()
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, nn.Embedding) or not isinstance(weight, Tensor) or weight.dim() < 2:
            continue
        if not weight.is_floating_point() or not weight.is_cpu:
            continue
        outputs, inputs = weight.shape[-2:]
        if place_matters("cpu", weight.dtype, outputs, inputs, threads):
            raise SettingsError(
                f"model.batch_invariant: got true, but with {threads} torch threads products of {weight.dtype} on this "
                f"CPU depend on a row's place for weights [{outputs}, {inputs}]; set group.num_cpus to 1 or 2, or "
                "model.dtype to float32"
            )
