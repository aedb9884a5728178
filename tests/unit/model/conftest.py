"""A stand-in for the Hub with one repository, for each file of this folder that asks for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

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
