"""Weights of the demo model that are not its own, and its tokens with any weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lopa_ray import LocalEngine
from lopa_ray.config.model_settings import DEMO_MODEL

PROMPT = "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?"


def changed_tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(DEMO_MODEL / "model.safetensors")
    noise = {name: torch.randn(t.shape, generator=generator) for name, t in sorted(tensors.items())}
    return {name: (t.float() + 0.03 * noise[name]).to(t.dtype) for name, t in tensors.items()}


def folder_of(tensors: dict[str, Tensor], folder: Path) -> Path:
    shutil.copytree(DEMO_MODEL, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tokens(engine: LocalEngine, **settings: Any) -> list[int]:
    return engine.generate(PROMPT, **settings).token_ids


def fresh(path: str | Path = "demo", **model: Any) -> list[int]:
    with LocalEngine.from_pretrained(path, **model) as engine:
        return tokens(engine)
