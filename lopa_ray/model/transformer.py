"""One pre-norm transformer with rotary positions and gated MLP, over packed rows.

Shape suffixes: R rows (positions of all sequences in the batch, one after the other),
D hidden size, H query heads, K key/value heads, E head dim, F MLP width, V vocabulary.
With tensor parallelism H, K, F and V are what this shard has of them (see `tensor_parallel.py`).

The module knows neither batches nor caches: it is handed rows, their absolute positions
and an `AttentionFn` callable that owns both. Decoding and training differ in that callable alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.model.config import ModelConfig
from lopa_ray.model.quantized import column_parallel_linear, has_int8_kernel, row_parallel_linear
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup, shard_range


class AttentionFn(Protocol):
    """Attention over the positions that the caller lets each row attend to."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with q [R, H, E] over k, v [R, K, E] (rotated) and what is cached; returns [R, H, E]."""
        ...


class RMSNorm(nn.Module):
    """Root-mean-square norm, reduced in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rope_table(head_dim: int, theta: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, fp32 [R, 1, E], of the rotary embedding at int positions [R]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions[:, None].float() * (1.0 / theta**exponents)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos(), angles.sin()


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [R, heads, E] in the half-split layout of Llama and Qwen2."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Layer(nn.Module):
    """Attention and MLP with fused QKV and gate/up projections."""

    def __init__(self, config: ModelConfig, tp_group: TensorParallelGroup) -> None:
        """`config` is the shard's."""
        super().__init__()
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.head_dim = config.head_dim
        d, e = config.hidden_size, config.head_dim
        self.attn_norm = RMSNorm(d, config.rms_norm_eps)
        self.qkv = column_parallel_linear(config, d, sum(self.heads) * e, bias=config.qkv_bias)
        self.q_norm = RMSNorm(e, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(e, config.rms_norm_eps) if config.qk_norm else None
        self.o = row_parallel_linear(config, config.num_heads * e, d, tp_group)
        self.mlp_norm = RMSNorm(d, config.rms_norm_eps)
        self.gate_up = column_parallel_linear(config, d, 2 * config.intermediate_size)
        self.down = row_parallel_linear(config, config.intermediate_size, d, tp_group)

    def forward(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionFn) -> Tensor:
        return self.output_and_mlp(x, attention(index, *self.project_qkv(x, cos, sin)))

    def project_qkv(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What attention takes of rows x [R, D]: q [R, H, E] and k [R, K, E], rotated, and v [R, K, E]."""
        qkv = self.qkv(self.attn_norm(x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split(self.heads, dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin), v

    def output_and_mlp(self, x: Tensor, attn_output: Tensor) -> Tensor:
        """Rows x [R, D] plus the projection of attn_output [R, H, E], then plus the MLP."""
        x = x + self.o(attn_output.flatten(1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        mlp: Tensor = self.down(F.silu(gate) * up)
        return x + mlp


class Transformer(nn.Module):
    """Token ids in, normed hidden rows out; `lm_head` turns chosen rows into logits."""

    def __init__(self, config: ModelConfig, tp_group: TensorParallelGroup = SINGLE_SHARD) -> None:
        """The shard of the model `config` that `tp_group` says. Raises SettingsError if it cannot be cut like that."""
        super().__init__()
        self.config = config
        self.tp_group = tp_group
        self.shard_config = config.shard(tp_group.size)
        """The shape of what this shard has; its own but for the vocabulary, which `config` and `tp_group` give."""
        # Without its usual random weights: on the meta device they have torch import its compiler, for two seconds.
        embedding = torch.empty(config.vocab_size, config.hidden_size)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size, _weight=embedding)
        self.layers = nn.ModuleList(Layer(self.shard_config, tp_group) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._vocabulary = shard_range(config.vocab_size, tp_group.rank, tp_group.size)
        self.lm_head = nn.Linear(config.hidden_size, len(self._vocabulary), bias=False)
        self.tie_weights()

    def tie_weights(self) -> None:
        """Let the LM head share the embedding's memory, or its shard's rows, where the configuration says so."""
        if self.config.tie_word_embeddings:
            rows = self.embed.weight
            if self.tp_group.size > 1:
                own = self._vocabulary
                rows = nn.Parameter(rows[own.start : own.stop], requires_grad=False)
            self.lm_head.weight = rows

    def compile_layers(self, backend: str) -> None:
        """Compile, by torch.compile, what a layer computes before attention and what it computes after.

        The same ones serve all layers and any number of rows. Attention stays outside: how many calls it takes,
        and over how many keys, differs from step to step.
        """
        # A graph has the answer as a constant: trying the kernel is not part of a layer.
        torch.compiler.assume_constant_result(has_int8_kernel.__wrapped__)  # type: ignore[no-untyped-call]  # torch has no types for it
        if self.tp_group.size > 1:
            # Collectives stay outside of graphs.
            for collective in ("all_reduce", "all_gather"):
                eager = torch.compiler.disable(getattr(self.tp_group, collective))  # type: ignore[no-untyped-call]  # nor for it
                setattr(self.tp_group, collective, eager)
        for layer in self.layers:
            for half in ("project_qkv", "output_and_mlp"):
                setattr(layer, half, torch.compile(getattr(layer, half), backend=backend, dynamic=True))

    def forward(self, ids: Tensor, positions: Tensor, attention: AttentionFn) -> Tensor:
        """Run int ids [R] at absolute int positions [R]; returns hidden rows [R, D] after the last norm."""
        x = self.embed(ids)
        cos, sin = rope_table(self.config.head_dim, self.config.rope_theta, positions)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(index, x, cos, sin, attention)
        hidden: Tensor = self.norm(x)
        return hidden
