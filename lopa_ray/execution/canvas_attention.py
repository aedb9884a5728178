"""Attention of models that denoise canvases (DiffusionGemma): layers with windows, and heads that differ among layers.

Shape suffixes: R packed rows, T rows of a lane or run, H query heads, K KV heads, L keys, E head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lopa_ray.execution.attention import SDPA_ATTENTION, AttentionBackend
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.step_columns import StepColumns
from lopa_ray.kernels.padding import padded_rows
from lopa_ray.kernels.sdpa import sdpa
from lopa_ray.model.model_config import ModelConfig
from lopa_ray.model.transformer import AttentionFn
from lopa_ray.model.transformers_implementation.canvas_model import unfold_heads
from lopa_ray.model.transformers_models.model_config import CanvasConfig, LayerShape


@dataclass(frozen=True, slots=True)
class CanvasAttention:
    """torch's scaled_dot_product_attention, unscaled, run by run of each lane. A row of the encoder sees itself and
    what is before it, in a layer with a window no more than that many positions. All rows of a canvas see the whole
    canvas, and before it all cached positions, or the last window - 1. The result of a row depends on its own run
    alone, so on CPU in fp32 it has the same bits in every batch."""

    layers: tuple[LayerShape, ...]
    bucket: Callable[[int], int] = padded_rows

    def bind(self, cache: KVCache, packing: Packing, columns: StepColumns[Tensor]) -> AttentionFn:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            shape, mixed = self.layers[layer], []
            for lane, row in zip(packing.lanes, packing.first_rows, strict=False):
                views = cache.layer_views(lane.slot, layer)

                def seen(
                    first: int,
                    stop: int,
                    start: int = lane.start,
                    row: int = row,
                    views: tuple[Tensor, Tensor] = views,
                ) -> tuple[Tensor, Tensor]:
                    """Keys and values [K, L, E] at the lane's positions from `first` to `stop`."""
                    cached = (unfold_heads(view[:, first:start], *shape[:2]) for view in views)
                    rows = slice(row + max(first - start, 0), row + stop - start)
                    fresh = (heads[rows].transpose(0, 1) for heads in (k, v))
                    keys, values = (torch.cat(parts, dim=1) for parts in zip(cached, fresh, strict=True))
                    return keys, values

                if not lane.encodes:
                    first = 0 if shape.window is None else max(0, lane.start - shape.window + 1)
                    rows = slice(row, row + len(lane.canvas))
                    mixed.append(sdpa(q[rows], *seen(first, lane.stop), scale=1.0))
                    continue
                begin = lane.start
                for count, _ in lane.runs():
                    stop = begin + count
                    first = 0 if shape.window is None else max(0, begin - shape.window + 1)
                    rows = slice(row + begin - lane.start, row + stop - lane.start)
                    mask = _causal_mask(range(begin, stop), range(first, stop), shape.window, q.device)
                    mixed.append(sdpa(q[rows], *seen(first, stop), scale=1.0, mask=mask))
                    begin = stop
            return torch.cat((*mixed, torch.zeros_like(q[packing.num_rows :])))

        return attend


def default_attention(config: ModelConfig) -> AttentionBackend:
    """The attention of a model where none is named: torch's scaled_dot_product_attention, lane by lane."""
    return CanvasAttention(config.layers) if isinstance(config, CanvasConfig) else SDPA_ATTENTION


def _causal_mask(queries: range, keys: range, window: int | None, device: torch.device) -> Tensor:
    """bool [T, L]"""
    rows = torch.arange(queries.start, queries.stop, device=device)[:, None]
    columns = torch.arange(keys.start, keys.stop, device=device)
    sees = columns <= rows
    return sees if window is None else sees & (columns > rows - window)
