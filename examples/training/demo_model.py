"""The demo model in training: its shape, its forward pass over batches, and its loss."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from demo_batches import Batch
from demo_tokenizer import EOS_TOKEN_ID, MASK_TOKEN_ID
from lopa_ray.model.config import NativeConfig
from lopa_ray.model.transformer import Transformer


def build_model(
    vocab_size: int, hidden_size: int, num_layers: int, num_heads: int, intermediate_size: int, seed: int
) -> Transformer:
    """A fresh model."""
    shape = NativeConfig(
        family="dream",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=intermediate_size,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
        qkv_bias=True,
        tie_word_embeddings=False,
        shifted=True,
        mask_token_id=MASK_TOKEN_ID,
        eos_token_id=EOS_TOKEN_ID,
        pad_token_id=EOS_TOKEN_ID,
        bos_token_id=EOS_TOKEN_ID,
        max_position_embeddings=512,
    )
    torch.manual_seed(seed)
    model = Transformer(shape)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(weight)
        elif weight.dim() == 2:
            inner = name.startswith("layers.")
            torch.nn.init.normal_(weight, std=0.7 / math.sqrt(weight.shape[1]) if inner else 0.02)
    return model


def forward(model: Transformer, ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Hidden states [B, T, D] of ids [B, T] under a mask [B, 1, T, T] of what each row sees."""
    shape = ids.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Written out: on CPUs the backward pass of the fused kernel takes three times as long.
        q, k, v = (rows.unflatten(0, shape).transpose(1, 2).to(torch.bfloat16) for rows in (q, k, v))
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~attention_mask, -math.inf).softmax(-1).to(torch.bfloat16)
        attended: Tensor = (weights @ v).transpose(1, 2).flatten(0, 1)
        return attended

    positions = torch.arange(shape[1], device=ids.device).repeat(shape[0])
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden: Tensor = model(ids.flatten(), positions, attend)
    return hidden.view(*shape, -1)


def loss_of(
    model: Transformer, batch: Batch, forward_fn: Callable[..., Tensor] = forward
) -> tuple[Tensor, float]:
    """Weighted cross-entropy of the predicted columns, and the accuracy on the heavier columns.

    A wrong prediction counts up to twice, by its probability: a decoder accepts what is confident and never takes it
    back.
    """
    hidden = forward_fn(model, batch.inputs, batch.attention_mask)
    weights = batch.weights[:, 1:]
    selected = weights > 0
    with torch.autocast(hidden.device.type, torch.bfloat16):
        logits = model.lm_head(hidden[:, :-1][selected]).float()
    targets, weights = batch.targets[:, 1:][selected], weights[selected]
    losses = F.cross_entropy(logits, targets, reduction="none")
    confidence, predicted = logits.detach().softmax(-1).max(-1)
    wrong = predicted != targets
    accuracy = 1 - wrong[weights >= 1].float().mean().item()
    weights = weights * (1 + wrong * confidence)
    return (losses * weights).sum() / weights.sum(), accuracy
