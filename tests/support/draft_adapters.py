"""Random PEFT adapters for drafts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK = 3
ALL_LINEAR = {
    "llada": ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj", "ff_out"),
    "": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
"""Names of a layer's linear modules by family; of all others: the last."""

OUTPUTS = ("o_proj",)


def save_draft_adapter(
    folder: Path,
    checkpoint: Path,
    targets: Sequence[str],
    *,
    mask_token: int | None = None,
    embedding: str = "model.embed_tokens",
) -> Path:
    """Write to `folder` an adapter of the modules of `checkpoint` whose names end in `targets`, in each layer, and the
    vector of the mask token in `embedding`, if it is named."""
    draw = torch.Generator().manual_seed(len(targets))
    tensors = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if "." not in module or not any(char.isdigit() for char in module):
            continue
        if weight.dim() == 2 and any(module.endswith(f".{target}") for target in targets):
            for half, shape in (("A", (RANK, weight.shape[1])), ("B", (weight.shape[0], RANK))):
                tensors[f"base_model.model.{module}.lora_{half}.weight"] = (
                    torch.randn(shape, generator=draw) / 5
                )
    raw = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": list(targets)}
    if mask_token is not None:
        size = json.loads((checkpoint / "config.json").read_text())["hidden_size"]
        name = f"base_model.model.{embedding}.token_adapter.trainable_tokens_delta"
        tensors[name] = torch.randn(1, size, generator=draw)
        raw["trainable_token_indices"] = [mask_token]
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(raw))
    return folder
