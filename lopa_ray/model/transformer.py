"""One pre-norm transformer with rotary positions and gated MLP, or experts, over packed rows.

It knows neither batches nor caches: an `AttentionFn` owns both.

Shape suffixes: R rows (positions of all sequences), D hidden size, H query heads, K key/value heads, E head dim, V
vocabulary. With tensor parallelism H, K and V are what this shard has of them.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from lopa_ray.kernels.rms_norm import add_rms_norm
from lopa_ray.kernels.rotary import rotate_qkv
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.draft_head import DraftHead
from lopa_ray.model.experts import MixtureOfExperts
from lopa_ray.model.linear import Linear
from lopa_ray.model.mlp import GatedMLP
from lopa_ray.model.rotation import Rotation
from lopa_ray.model.router import blocks_of
from lopa_ray.model.soft_inputs import embed_softly
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, OrderedSums, TensorParallelGroup, shard_range


class AttentionFn(Protocol):
    """Attention over the positions that the caller lets each row attend to."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with q [R, H, E] over k, v [R, K, E] (rotated) and what is cached; returns [R, H, E]."""


class RMSNorm(nn.Module):
    """Root-mean-square norm, reduced in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of rows x and delta [R, D], and its norm [R, D], in their dtype."""
        return add_rms_norm(x, delta, self.weight, self.eps)


class Layer(nn.Module):
    def __init__(self, config: NativeConfig, index: int, tp_group: TensorParallelGroup) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_heads, config.head_dim
        self.rms_norm_eps = config.rms_norm_eps
        d, e = config.hidden_size, config.head_dim
        num_projected = config.num_heads + 2 * config.num_kv_heads
        self.attn_norm = RMSNorm(d, config.rms_norm_eps)
        self.qkv = Linear(
            config, (num_projected * e, d), bias=config.qkv_bias, draft_width=config.draft_width("qkv")
        )
        self.q_norm = RMSNorm(e, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(e, config.rms_norm_eps) if config.qk_norm else None
        self.o = Linear(config, (d, config.num_heads * e), tp_group, draft_width=config.draft_width("o"))
        self.mlp_norm = RMSNorm(d, config.rms_norm_eps)
        self.mlp: GatedMLP | MixtureOfExperts
        if config.is_dense(index):
            self.mlp = GatedMLP(config, config.intermediate_size, tp_group, drafts=True)
        else:
            self.mlp = MixtureOfExperts(config, tp_group)

    def forward(
        self,
        index: int,
        x: Tensor,
        delta: Tensor,
        rotation: Rotation,
        attention: AttentionFn,
        kv: Tensor | None,
        draft_rows: Tensor | None,
        blocks: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Rows x + delta [R, D] through the layer → rows [R, D], and what is to be added to them [R, D]. Residual sums
        are left to the norm that follows, which is one kernel with them. `rotation` is for the rows' positions.
        `kv` [2, R, K, E], if given, receives keys and values. All have the model's dtype. `draft_rows`: see
        `Linear.forward`; `blocks`: see `MixtureOfExperts`."""
        x, normed = self.attn_norm(x, delta)
        qkv = self.qkv(normed, draft_rows).unflatten(-1, (-1, self.head_dim))
        q_weight = None if self.q_norm is None else self.q_norm.weight
        k_weight = None if self.k_norm is None else self.k_norm.weight
        cos, sin, query_scale = rotation
        q, k, v = rotate_qkv(qkv, self.num_heads, cos, sin, q_weight, k_weight, self.rms_norm_eps, kv)
        q = q if query_scale is None else q * query_scale
        x, normed = self.mlp_norm(x, self.o(attention(index, q, k, v).flatten(1), draft_rows))
        if isinstance(self.mlp, GatedMLP):
            return x, self.mlp(normed, draft_rows)
        return x, self.mlp(normed, blocks)


class Transformer(nn.Module):
    """Token ids in, normed hidden rows out; `lm_head` turns chosen rows into logits."""

    learned_positions: int | None = None

    def __init__(self, config: NativeConfig, tp_group: TensorParallelGroup = SINGLE_SHARD) -> None:
        """The shard of the model `config` that `tp_group` says. Raises SettingsError if it cannot be cut like that."""
        super().__init__()
        if config.batch_invariant and tp_group.size > 1:
            tp_group = OrderedSums(tp_group)
        self.config = config
        self.tp_group: TensorParallelGroup = tp_group
        self.shard_config = config.shard(tp_group.size)
        # Without its usual random weights: on the meta device they have torch import its compiler, for two seconds.
        embedding = torch.empty(config.vocab_size, config.hidden_size)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size, _weight=embedding)
        self.layers = nn.ModuleList(
            Layer(self.shard_config, index, tp_group) for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.draft_head = None if config.draft_head is None else DraftHead(config, *config.draft_head)
        self._vocabulary = shard_range(config.vocab_size, tp_group.rank, tp_group.size)
        self.lm_head = Linear(config, (len(self._vocabulary), config.hidden_size), quantization="none")
        self.tie_weights()

    def tie_weights(self) -> None:
        """Let the LM head share the embedding's memory, or its shard's rows, where the configuration says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.embed.weight
            if self.tp_group.size > 1:
                rows = self.embed.weight[self._vocabulary.start : self._vocabulary.stop]
                self.lm_head.weight = nn.Parameter(rows, requires_grad=False)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        attention: AttentionFn,
        kv: Tensor | None = None,
        input_weights: Tensor | None = None,
        draft_rows: Tensor | None = None,
    ) -> Tensor:
        """See `MaskPredictor.__call__`."""
        x = embed_softly(self.embed, ids, input_weights, self.config.mask_token_id)
        delta = torch.zeros_like(x)
        rotation = Rotation.of(self.config, positions, x.dtype)
        routing_block = self.config.routing_block
        blocks = blocks_of(positions, routing_block) if routing_block else None
        if draft_rows is not None:
            draft_rows = draft_rows.to(x.dtype)[:, None]
        for index, layer in enumerate(self.layers):
            own_kv = None if kv is None else kv[index]
            x, delta = layer(index, x, delta, rotation, attention, own_kv, draft_rows, blocks)
        hidden: Tensor = self.norm(x, delta)[1]
        return hidden
