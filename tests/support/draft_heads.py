"""Draft heads with random weights, for the tiny models of the tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

WIDTH, TOKENS = 24, 40


def with_random_head(checkpoint: Path, folder: Path, *, seed: int = 0) -> Path:
    """A copy of `checkpoint` in `folder`, with a draft head beside its weights."""
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    size, draw = config["hidden_size"], torch.Generator().manual_seed(seed)
    drawn = {"mix": (WIDTH, 2 * size), "update": (size, WIDTH), "project": (size, size)}
    tensors = {f"{name}.weight": torch.randn(shape, generator=draw) for name, shape in drawn.items()}
    norms = dict.fromkeys(("hidden_norm", "token_norm", "score_norm"))
    tensors |= {name: torch.rand(size, generator=draw) + 0.5 for name in norms}
    tensors["tokens"] = torch.randperm(config["vocab_size"], generator=draw)[:TOKENS].sort().values.int()
    save_file(tensors, folder / "draft_head.safetensors")
    return folder
