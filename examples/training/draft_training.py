"""A draft adapter in training: the weights of a model that are trained, its forward over blocks, and its PEFT folder.

Shape suffixes: N samples, T columns, R rows of blocks per sample, D hidden size, H heads, K KV heads, E head dim.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

from draft_blocks import Blocks
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.config import DRAFT_LAYERS
from lopa_ray.model.families.family import published_rows
from lopa_ray.model.families.native import family_of
from lopa_ray.model.native_implementation import NativeImplementation
from lopa_ray.model.transformer import Transformer

Context: TypeAlias = list[tuple[Tensor, Tensor]]
"""Keys and values [N, K, T, E] of each layer."""


def draft_rows(model: Transformer, ids: Tensor, positions: Tensor, context: Context, bias: Tensor) -> Tensor:
    """Rows int64 [N, R] that draft, at int64 positions [N, R] → hidden rows bf16 [N, R, D]. `bias` fp32
    [N, 1, 1, R, T + R] is 0 where a row sees a key, and minus infinity elsewhere."""
    size, rows = ids.shape

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = (
            torch.cat((before, fresh.unflatten(0, (size, rows)).transpose(1, 2)), 2)
            for before, fresh in zip(context[layer], (k, v), strict=True)
        )
        groups = keys.shape[1]
        grouped = q.unflatten(0, (size, rows)).unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4)
        # Written out: on CPUs the backward pass of the fused kernel takes several times as long.
        scores = grouped.flatten(2, 3) @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
        weights = (scores.view(size, groups, -1, rows, keys.shape[2]) + bias).softmax(-1)
        mixed = (weights.flatten(2, 3).to(q.dtype) @ values).view(grouped.shape)
        attended: Tensor = mixed.permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1, 2)
        return attended

    ones = torch.ones(size * rows, dtype=torch.bfloat16)
    hidden: Tensor = model(ids.flatten(), positions.flatten(), attend, draft_rows=ones)
    return hidden.view(size, rows, -1)


class Half(nn.Module):
    """Half of an adapter: trained in fp32, used in bfloat16, and 0 outside of the blocks of its modules."""

    allowed: Tensor

    def __init__(self, allowed: Tensor) -> None:
        super().__init__()
        self.register_buffer("allowed", allowed)

    def forward(self, weight: Tensor) -> Tensor:
        """fp32 [O, I] → bf16 [O, I]"""
        return (weight * self.allowed).to(torch.bfloat16)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The trained weight, fp32."""
        return weight.float()


class EmbeddingWithMask(nn.Module):
    """The embeddings of a model, with a vector of its own for the mask token, trained in fp32."""

    def __init__(self, weight: Tensor, mask_token_id: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.mask_token_id = mask_token_id
        self.vector = nn.Parameter(weight.float().mean(0))

    def forward(self, ids: Tensor) -> Tensor:
        """int64 [R] → bf16 [R, D]"""
        known = nn.functional.embedding(ids, self.weight)
        return torch.where((ids == self.mask_token_id)[:, None], self.vector.to(known.dtype), known)


class DraftTraining(nn.Module):
    """A checkpoint in bfloat16 that stays as it is, an adapter of rank P in all of its linear layers, and a vector for
    the mask token."""

    def __init__(self, folder: Path, rank: int, seed: int) -> None:
        super().__init__()
        plain = load_config(folder)
        self.family, self.rank = family_of(plain), rank
        parts = {layer: len(self.family.published_modules[f"layers.{{i}}.{layer}"]) for layer in DRAFT_LAYERS}
        config = plain.with_draft_adapter(tuple((layer, rank * count) for layer, count in parts.items()))
        implementation = NativeImplementation(config, torch.bfloat16)
        generator = torch.Generator().manual_seed(seed)
        weights = dict(NativeImplementation(plain, torch.bfloat16).read_weights(folder))
        self.modules_of: dict[str, dict[str, int]] = {}
        for layer in (f"layers.{at}.{name}" for at in range(config.num_layers) for name in DRAFT_LAYERS):
            rows, inputs = weights[f"{layer}.weight"].shape
            published = published_rows(self.family, config, f"{layer}.weight", rows)
            self.modules_of[layer] = {
                name.removesuffix(".weight"): count for name, count in published.items()
            }
            width = rank * len(published)
            down = torch.randn(width, inputs, generator=generator) / math.sqrt(inputs)
            weights[f"{layer}.draft.down.weight"] = down
            weights[f"{layer}.draft.up.weight"] = torch.zeros(rows, width)
        self.model: Transformer = implementation.build_model(iter(weights.items()))
        for layer, published in self.modules_of.items():
            draft: Any = self.model.get_submodule(f"{layer}.draft")  # parametrizations are not typed
            blocks = [torch.ones(count, rank) for count in published.values()]
            diagonal = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]  # torch's types lack it
            for half, allowed in ((draft.down, torch.ones(1)), (draft.up, diagonal)):
                half.weight.data = half.weight.data.float()
                parametrize.register_parametrization(half, "weight", Half(allowed), unsafe=True)
                half.parametrizations.weight.original.requires_grad_(True)
        self.embed = EmbeddingWithMask(self.model.embed.weight.data, config.mask_token_id)
        self.model.embed = self.embed  # type: ignore[assignment]  # it stands in for one
        self.config = config

    def trained(self) -> dict[str, nn.Parameter]:
        return {name: value for name, value in self.named_parameters() if value.requires_grad}

    @torch.no_grad()
    def context(self, ids: Tensor) -> tuple[Tensor, Context]:
        """Samples int64 [N, T] → the model's hidden rows bf16 [N, T, D], and keys and values [N, K, T, E] per layer."""
        size, columns = ids.shape
        kept: Context = []

        def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (rows.unflatten(0, (size, columns)).transpose(1, 2) for rows in (q, k, v))
            kept.append((k, v))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return mixed.transpose(1, 2).flatten(0, 1)

        hidden = self.model(ids.flatten(), torch.arange(columns).repeat(size), attend)
        return hidden.view(size, columns, -1), kept

    def drafts(self, blocks: Blocks, context: Context) -> Tensor:
        """The rows of blocks → hidden rows bf16 [N, R, D]."""
        seen = blocks.mask()
        bias = torch.zeros(seen.shape).masked_fill_(~seen, -math.inf)[:, None, None]
        ids = torch.where(blocks.masked, self.config.mask_token_id, blocks.inputs)
        return draft_rows(self.model, ids, blocks.positions, context, bias)

    def save(self, folder: Path) -> None:
        """Write the adapter, in bfloat16, as PEFT does."""
        tensors: dict[str, Tensor] = {}
        for layer, published in self.modules_of.items():
            draft: Any = self.model.get_submodule(f"{layer}.draft")
            downs = draft.down.weight.detach().split(self.rank)
            ups = draft.up.weight.detach().split([*published.values()])
            for at, (name, down, up) in enumerate(zip(published, downs, ups, strict=True)):
                lead = f"base_model.model.{name}"
                tensors[f"{lead}.lora_A.weight"] = down.contiguous()
                tensors[f"{lead}.lora_B.weight"] = up[:, at * self.rank : (at + 1) * self.rank].contiguous()
        vector = self.embed.vector.detach().to(torch.bfloat16)[None]
        tensors["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"] = vector
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        targets = sorted({name.rpartition(".")[2] for names in self.modules_of.values() for name in names})
        settings = {
            "peft_type": "LORA",
            "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "r": self.rank,
            "lora_alpha": self.rank,
            "target_modules": targets,
            "trainable_token_indices": [self.config.mask_token_id],
            "bias": "none",
        }
        (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")
