"""One pre-norm transformer with rotary positions and gated MLP, over packed rows.

Shape suffixes: R rows (positions of all sequences in the batch, one after the other),
D hidden size, H query heads, K key/value heads, E head dim, F MLP width, V vocabulary.
With tensor parallelism H, K, F and V are what this shard has of them (see `parallel.py`).

The module knows neither batches nor caches: it is handed rows, their absolute positions
and an `Attend` callable that owns both. Decoding and training differ in that callable alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lopa_ray.model.config import ModelConfig
from lopa_ray.model.quantized import has_int8_kernel, layer_linear, summed_linear
from lopa_ray.model.tensor_parallel import SINGLE_SHARD, TensorParallelGroup, part


class Attend(Protocol):
    """Attention over whatever the caller lets each row see."""

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


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [R, heads, E] in the half-split layout of Llama and Qwen2."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class Layer(nn.Module):
    """Attention and MLP with fused QKV and gate/up projections."""

    def __init__(self, config: ModelConfig, parallel: TensorParallelGroup) -> None:
        """`config` is the shard's."""
        super().__init__()
        self.heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        self.head_dim = config.head_dim
        d, e = config.hidden_size, config.head_dim
        self.attn_norm = RMSNorm(d, config.rms_norm_eps)
        self.qkv = layer_linear(config, d, sum(self.heads) * e, bias=config.qkv_bias)
        self.q_norm = RMSNorm(e, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(e, config.rms_norm_eps) if config.qk_norm else None
        self.o = summed_linear(config, config.num_heads * e, d, parallel)
        self.mlp_norm = RMSNorm(d, config.rms_norm_eps)
        self.gate_up = layer_linear(config, d, 2 * config.intermediate_size)
        self.down = summed_linear(config, config.intermediate_size, d, parallel)

    def forward(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        return self.after(x, attend(index, *self.before(x, cos, sin)))

    def before(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What attention takes of rows x [R, D]: q [R, H, E] and k [R, K, E], rotated, and v [R, K, E]."""
        qkv = self.qkv(self.attn_norm(x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split(self.heads, dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def after(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Rows x [R, D] with what attention gave, mixed [R, H, E], and the MLP's part."""
        x = x + self.o(mixed.flatten(1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        mlp: Tensor = self.down(F.silu(gate) * up)
        return x + mlp


class Transformer(nn.Module):
    """Token ids in, normed hidden rows out; `lm_head` turns chosen rows into logits."""

    def __init__(self, config: ModelConfig, parallel: TensorParallelGroup = SINGLE_SHARD) -> None:
        """The shard of the model `config` that `parallel` says. Raises SettingsError if it cannot be cut like that."""
        super().__init__()
        self.config = config
        self.parallel = parallel
        self.share = config.shard(parallel.size)
        """The shape of what this shard has; its own but for the vocabulary, which `config` and `parallel` give."""
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(self.share, parallel) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self._vocabulary = part(config.vocab_size, parallel.rank, parallel.size)
        self.lm_head = nn.Linear(config.hidden_size, len(self._vocabulary), bias=False)
        self.tie()

    def tie(self) -> None:
        """Where the model says so the LM head is the embedding, or this shard's rows of it: no memory of its own."""
        if self.config.tie_word_embeddings:
            rows = self.embed.weight
            if self.parallel.size > 1:
                own = self._vocabulary
                rows = nn.Parameter(rows[own.start : own.stop], requires_grad=False)
            self.lm_head.weight = rows

    def compile_layers(self, backend: str) -> None:
        """Have torch.compile make graphs of what a layer does before attention, and of what it does after.

        The same ones serve all layers and any number of rows. Attention stays outside: how many calls it takes,
        and over how many keys, differs from step to step.
        """
        # A graph keeps the answer: trying the kernel is not part of a layer.
        torch.compiler.assume_constant_result(has_int8_kernel.__wrapped__)  # type: ignore[no-untyped-call]  # torch has no types for it
        if self.parallel.size > 1:
            # Graphs end where shards talk to each other.
            for call in ("all_reduce", "all_gather"):
                whole = torch.compiler.disable(getattr(self.parallel, call))  # type: ignore[no-untyped-call]  # nor for it
                setattr(self.parallel, call, whole)
        for layer in self.layers:
            for half in ("before", "after"):
                setattr(layer, half, torch.compile(getattr(layer, half), backend=backend, dynamic=True))

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Run int ids [R] at absolute int positions [R]; returns hidden rows [R, D] after the last norm."""
        x = self.embed(ids)
        cos, sin = rope_table(self.config.head_dim, self.config.rope_theta, positions)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(index, x, cos, sin, attend)
        hidden: Tensor = self.norm(x)
        return hidden
