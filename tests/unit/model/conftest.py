"""A stand-in for the Hub with one repository, and an adapter, for the files of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from support.hub_client import use_hub
from support.hub_stand_in import HubStandIn


@pytest.fixture
def published(checkpoint: Path) -> Path:
    """A checkpoint with all that a repository may have beside what is loaded."""
    for name in (
        "README.md",
        ".gitattributes",
        "chat_template.jinja",
        "merges.txt",
        "modeling_dream.py",
        "onnx/config.json",
        "onnx/model.onnx",
        "original/model.safetensors",
        "original/tokenizer.json",
        "pytorch_model.bin",
        "tokenizer_config.json",
        "training_args.pt",
    ):
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text(json.dumps({"this is": name}))
    return checkpoint


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, published: Path) -> Iterator[HubStandIn]:
    """Has `org/model`; this process uses it, with an empty cache in `tmp_path`/home."""
    with HubStandIn() as started:
        started.repository("org/model", published)
        use_hub(monkeypatch, started.url, tmp_path / "home")
        yield started


@pytest.fixture
def llada_adapter(tmp_path: Path) -> Path:
    """As D2F publishes one for LLaDA-Instruct: other module names, attn_out in place of o_proj."""
    targets = ["q_proj", "k_proj", "v_proj", "attn_out", "ff_proj"]
    generator = torch.Generator().manual_seed(0)
    pairs = {}
    for module in (f"model.transformer.blocks.{i}.{name}" for i in range(3) for name in targets):
        outputs = 128 if module.endswith("ff_proj") else 64
        for which, shape in (("A", (4, 64)), ("B", (outputs, 4))):
            tensor = torch.randn(shape, generator=generator) / 8
            pairs[f"base_model.model.{module}.lora_{which}.weight"] = tensor
    (folder := tmp_path / "llada-adapter").mkdir()
    save_file(pairs, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": targets, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder
