"""CanvasModel: a model that denoises canvases of random tokens (DiffusionGemma), by modules of transformers.

Encoder and decoder have the same weights, except for the scalar of each layer, so one pass over packed rows does for
both: rows of the encoder (prompt, finished canvases) take their embedding, rows of the decoder (the canvas) the normed
sum of embedding and self-conditioning.

Shape suffixes: R rows, D hidden size, H query heads, K key/value heads, E head dim, L layers, N scored rows, V
vocabulary. K and E differ from layer to layer; the cache has the configuration's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup
from lopa_ray.model.transformer import AttentionFn
from lopa_ray.model.transformers_implementation.model import PackedStep
from lopa_ray.model.transformers_models.model_config import CanvasConfig


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    packed_step: PackedStep,
    scaling: float,
    **others: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: query [1, H, R, E], key and value [1, K, R, E] → [1, R, H, E] in
    their dtype. `others` say what the step decides here: windows, and that a canvas sees all of itself."""
    assert attention_mask is None and scaling == 1.0 and isinstance(module.layer_idx, int)
    q, k, v = (heads[0].transpose(0, 1).contiguous() for heads in (query, key, value))
    if packed_step.kv is not None:
        heads, dim = packed_step.kv.shape[-2:]
        packed_step.kv[module.layer_idx, 0].copy_(fold_heads(k, heads, dim))
        packed_step.kv[module.layer_idx, 1].copy_(fold_heads(v, heads, dim))
    return packed_step.attention(module.layer_idx, q, k, v)[None], None


def fold_heads(rows: Tensor, heads: int, dim: int) -> Tensor:
    """Keys or values of one layer [R, K, E] in the shape of the cache's, [R, heads, dim], and in their dtype: E is a
    multiple of `dim`, and what is left over is 0."""
    flat = rows.flatten(1)
    return F.pad(flat, (0, heads * dim - flat.shape[1])).view(-1, heads, dim)


def unfold_heads(cached: Tensor, heads: int, dim: int) -> Tensor:
    """The reverse for cached keys or values [heads of the cache, R, dim of the cache] → [heads, R, dim] in their
    dtype."""
    parts = dim // cached.shape[-1]
    if parts == 1:
        return cached[:heads]
    by_head = cached[: heads * parts].reshape(heads, parts, *cached.shape[1:])
    return by_head.transpose(1, 2).flatten(2)


class SoftCappedHead(nn.Linear):
    def __init__(self, weight: nn.Parameter, cap: float) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=False, device="meta")
        self.weight = weight
        self.cap = cap

    def forward(self, input: Tensor) -> Tensor:
        """Hidden rows [N, D] in the weight's dtype → logits fp32 [N, V]."""
        return torch.tanh(super().forward(input).float() / self.cap) * self.cap


class CanvasModel(nn.Module):
    """Token ids in, normed hidden rows out. It is a `MaskPredictor`, except that it fills no masks."""

    draft_head: None = None
    learned_positions: int | None = None

    def __init__(self, config: CanvasConfig, decoder: Any, encoder_scalars: Tensor) -> None:
        """`decoder`, of transformers, has `attend` for its attention. `encoder_scalars` [L] scale the layers in rows of
        the encoder."""
        super().__init__()
        self.config = config
        self.shard_config = config
        self.tp_group: TensorParallelGroup = SINGLE_SHARD
        self.decoder: Any = decoder
        of_decoder = torch.cat([layer.layer_scalar for layer in decoder.layers])
        self.layer_scalars = nn.Buffer(torch.stack((of_decoder, encoder_scalars)))
        for layer in decoder.layers:  # rows are scaled here, after each layer
            layer.layer_scalar = torch.ones_like(layer.layer_scalar)
        self.lm_head = SoftCappedHead(
            decoder.embed_tokens.weight, decoder.text_config.final_logit_softcapping
        )

    @property
    def embed(self) -> nn.Embedding:
        embed: nn.Embedding = self.decoder.embed_tokens
        return embed

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: AttentionFn,
        kv: Tensor | None = None,
        input_weights: Tensor | None = None,
        *,
        is_encoded: Tensor | None = None,
        signals: Tensor | None = None,
    ) -> Tensor:
        """See `MaskPredictor.__call__`. `kv` receives folded heads (see `fold_heads`). `is_encoded` bool [R] says which
        rows are the encoder's; None: all. `signals` [R, D] is the self-conditioning of the others (see `signals`); rows
        of 0 have none. There are no soft inputs."""
        assert input_weights is None
        decoder, ids, positions = self.decoder, ids[None], positions[None]
        hidden = decoder.embed_tokens(ids)
        if is_encoded is None or signals is None:
            is_encoded = torch.ones_like(ids[0], dtype=torch.bool)
        else:
            denoised = decoder.self_conditioning(hidden, signals[None])
            hidden = torch.where(is_encoded[None, :, None], hidden, denoised)
        rotations = {
            kind: decoder.rotary_emb(hidden, positions, kind) for kind in sorted(decoder.unique_layer_types)
        }
        scalars = self.layer_scalars.index_select(0, is_encoded.to(torch.int64))
        for index, layer in enumerate(decoder.layers):
            hidden = layer(
                hidden,
                position_embeddings=rotations[decoder.text_config.layer_types[index]],
                attention_mask=None,
                position_ids=positions,
                past_key_values=None,
                packed_step=PackedStep(attention, kv),
            )
            hidden = hidden * scalars[None, :, index, None]
        normed: Tensor = decoder.norm(hidden)[0]
        return normed

    def signals(self, logits: Tensor) -> Tensor:
        """The self-conditioning of the next call from this call's logits after temperature, fp32 [N, V] → [N, D] in the
        model's dtype: the mean embedding under their softmax."""
        embed = self.decoder.embed_tokens
        likely = logits.softmax(dim=-1, dtype=torch.float32).to(embed.weight.dtype)
        soft: Tensor = likely @ embed.weight * embed.embed_scale.to(embed.weight.dtype)
        return soft
