"""The plain batched forward: what the same rows cost in torch's own functions, with a copy of the prefix per branch.

Shape suffixes: B branches, W rows of a window, P cached positions, D hidden size, K KV heads, E head dim, L layers,
V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lopa_ray.errors import SettingsError
from lopa_ray.model.mlp import GatedMLP
from lopa_ray.model.rotation import Rotation
from lopa_ray.model.transformer import Layer, Transformer


class BatchedForward:
    """Branches as a batch, after a prefix that all of them share.

    Every row of a window sees the prefix and the whole window, and the LM head takes every row. It uses none of this
    project's kernels, and neither packs, stages nor scores.
    """

    def __init__(self, model: Transformer, batch: int, window: int, prefix: Tensor) -> None:
        """`prefix` [L, 2, K, P, E]: rotated keys, and values, at the positions 0 to P, P of them or none.

        Its copies for the batch are made here, and so are the angles of the positions P to P + W. Raises SettingsError
        for a quantised model, one with experts, and for a shard.
        """
        config = model.config
        if config.quantization != "none" or config.experts is not None or model.tp_group.size > 1:
            raise SettingsError(
                "the plain batched forward takes a whole dense model with weights that are not quantised; measure "
                "without model.quantization and group.tensor_parallel_size"
            )
        self._model = model
        self._prefix = prefix[:, :, None].expand(-1, -1, batch, -1, -1, -1).contiguous()
        """[L, 2, B, K, P, E]."""
        begin = prefix.shape[3]
        positions = torch.arange(begin, begin + window, device=prefix.device)
        cos, sin, self._query_scale = Rotation.of(config, positions, prefix.dtype)
        self._cos, self._sin = (angles.squeeze(1) for angles in (cos, sin))

    @torch.inference_mode()
    def __call__(self, ids: Tensor) -> Tensor:
        """Token ids int64 [B, W] → logits [B, W, V], row by row as the model gives them (not shifted)."""
        model = self._model
        x = model.embed(ids)
        for layer, (keys, values) in zip(model.layers, self._prefix, strict=True):
            assert isinstance(layer, Layer) and isinstance(layer.mlp, GatedMLP)
            x = x + self._attention(layer, _norm(x, layer.attn_norm.weight, layer.rms_norm_eps), keys, values)
            x = x + _mlp(layer.mlp, _norm(x, layer.mlp_norm.weight, layer.rms_norm_eps))
        logits: Tensor = model.lm_head(_norm(x, model.norm.weight, model.norm.eps))
        return logits

    def _attention(self, layer: Layer, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Rows [B, W, D] and the prefix's keys and values [B, K, P, E] → [B, W, D]."""
        qkv = layer.qkv(x).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
        groups = keys.shape[1]
        q, k, v = qkv.split((layer.num_heads, groups, groups), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = _norm(q, layer.q_norm.weight, layer.rms_norm_eps)
            k = _norm(k, layer.k_norm.weight, layer.rms_norm_eps)
        keys = torch.cat((keys, self._rotate(k)), dim=2)
        values = torch.cat((values, v), dim=2)
        q = self._rotate(q)
        if self._query_scale is not None:
            q = q * self._query_scale.squeeze(1)
        mixed = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        projected: Tensor = layer.o(mixed.transpose(1, 2).flatten(2))
        return projected

    def _rotate(self, x: Tensor) -> Tensor:
        """x [B, heads, W, E], turned by each row's angles."""
        low, high = x.chunk(2, dim=-1)
        return x * self._cos + torch.cat((-high, low), dim=-1) * self._sin


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _mlp(mlp: GatedMLP, x: Tensor) -> Tensor:
    gate, up = mlp.gate_up(x).chunk(2, dim=-1)
    projected: Tensor = mlp.down(F.silu(gate) * up)
    return projected
