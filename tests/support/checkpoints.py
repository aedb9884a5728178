"""Tiny published checkpoints: loaded, edited in place, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.native_implementation import load_model
from lopa_ray.model.transformer import Transformer
from support.paths import GOLDEN

FORWARD_CASES = [json.loads(line) for line in (GOLDEN / "forward_cases.jsonl").read_text().splitlines()]
UNMASKED_CASES = [case for case in FORWARD_CASES if case["steps"][0].get("attn") == "none"]
Q = "model.layers.0.self_attn.q_proj.weight"

torch.set_num_threads(1)


def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Every row sees every row."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)[0].transpose(0, 1)


def logits(model: Transformer, ids: list[int]) -> Tensor:
    with torch.inference_mode():
        out: Tensor = model.lm_head(model(torch.tensor(ids), torch.arange(len(ids)), attend))
    return out


def load(path: Path, **options: Any) -> Transformer:
    return load_model(path, **{"dtype": torch.float32, "device": "cpu", **options})


def edit_json(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) | changes
    remaining = {key: value for key, value in content.items() if value is not ...}
    file.write_text(json.dumps(remaining))


def edit_tensors(folder: Path, **changes: Any) -> None:
    """Replace tensors (names with `/` for `.`), or drop those that are None."""
    file = folder / "model.safetensors"
    tensors = load_file(file) | {name.replace("/", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in tensors.items() if value is not None}, file)


def shard(folder: Path) -> dict[str, Path]:
    """Split model.safetensors in three so that fused parts lie in different files."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {name: f"model-{i % 3 + 1:05}-of-00003.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {name: folder / file for name, file in weight_map.items()}


def refused(checkpoint: Path, *parts: str, **options: Any) -> None:
    """Loading fails with one CheckpointError whose message has every part."""
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, **options)
    for part in parts:
        assert part in str(caught.value)
