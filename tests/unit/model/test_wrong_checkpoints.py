"""Checkpoints that are not what they should be are refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from support.checkpoints import Q, edit_json, edit_tensors, load, refused, shard


def test_missing_tensors_are_named(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{Q.replace(".", "/"): None})
    refused(checkpoint, "model.safetensors", f"tensor {Q} is missing")
    edit_tensors(checkpoint, **{"model/norm/weight": None})
    refused(checkpoint, "(and 1 more) are missing")


def test_extra_tensors_are_named(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{"model/layers/2/mlp/up_proj/weight": torch.ones(128, 64)})
    refused(checkpoint, "model.safetensors", "model.layers.2.mlp.up_proj.weight is not part", "2 layers")


@pytest.mark.parametrize("shape", [(63, 64), (64,)])
def test_misshapen_tensors_are_named(checkpoint: Path, shape: tuple[int, ...]) -> None:
    edit_tensors(checkpoint, **{Q.replace(".", "/"): torch.ones(shape)})
    refused(checkpoint, "model.safetensors", f"{Q} has shape {list(shape)}", "[64, 64]")


def test_quantised_tensors_are_refused(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{Q.replace(".", "/"): torch.ones((64, 64), dtype=torch.int8)})
    refused(checkpoint, "model.safetensors", Q, "torch.int8", "float32")


def test_damaged_weights_are_refused(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    whole = file.read_bytes()
    for content in (whole[:4], whole[:3000], b"\xff" * 4096):
        file.write_bytes(content)
        refused(checkpoint, str(file), "truncated, damaged")


def test_shards_must_be_there_and_match_their_index(checkpoint: Path) -> None:
    places = shard(checkpoint)
    index = checkpoint / "model.safetensors.index.json"
    good = json.loads(index.read_text())
    moved = {**good["weight_map"], Q: places["model.norm.weight"].name}
    if moved[Q] == good["weight_map"][Q]:
        moved[Q] = places["lm_head.weight"].name
    index.write_text(json.dumps({"weight_map": moved}))
    refused(checkpoint, moved[Q], f"tensor {Q} is not in it")
    index.write_text(json.dumps({"weight_map": {**good["weight_map"], Q: "../elsewhere.safetensors"}}))
    refused(checkpoint, str(index), Q, "../elsewhere.safetensors")
    index.write_text(json.dumps({"weight_map": []}))
    refused(checkpoint, str(index), "weight_map")
    index.write_text("{")
    refused(checkpoint, str(index), "cannot be read as JSON")
    index.write_text(json.dumps(good))
    places[Q].unlink()
    refused(checkpoint, str(places[Q]), "no such file")


def test_the_index_decides_between_files_that_have_the_same_tensor(checkpoint: Path) -> None:
    """Shards of an earlier save may have tensors that the index lists elsewhere."""
    expected = load(checkpoint).state_dict()
    places = shard(checkpoint)
    other = next(file for file in places.values() if file != places[Q])
    stale = load_file(other)
    save_file({**stale, Q: torch.zeros_like(load_file(places[Q])[Q])}, other)
    loaded = load(checkpoint).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    # Without its line in the index neither of the two is the right one.
    index = checkpoint / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"][Q]
    index.write_text(json.dumps(content))
    refused(checkpoint, Q, "is also in")


def test_a_shard_left_out_of_the_index_is_a_missing_tensor(checkpoint: Path) -> None:
    shard(checkpoint)
    index = checkpoint / "model.safetensors.index.json"
    good = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {n: f for n, f in good.items() if f != good[Q]}}))
    refused(checkpoint, "index.json", "are missing")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model_type": "gpt2"}, ["model_type = 'gpt2'", "'Dream'"]),
        ({"architectures": ["DreamForSequenceClassification"]}, ["DreamForSequenceClassification"]),
        ({"model_type": ..., "architectures": ...}, ["model_type = None"]),
        ({"hidden_act": "gelu"}, ["hidden_act = 'gelu'", "'silu'"]),
        ({"use_sliding_window": True}, ["use_sliding_window = True"]),
        ({"hidden_size": ...}, ["no hidden_size"]),
        ({"hidden_size": "64"}, ["hidden_size = '64'", "integer above 0"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers = True"]),
        ({"rms_norm_eps": -1}, ["rms_norm_eps = -1"]),
        ({"tie_word_embeddings": 1}, ["tie_word_embeddings = 1", "true or false"]),
        ({"num_attention_heads": 5}, ["5 heads"]),
        ({"num_key_value_heads": 3}, ["3 KV heads"]),
        ({"eos_token_id": [1, 128]}, ["eos_token_id = [1, 128]", "0..127"]),
        ({"eos_token_id": []}, ["eos_token_id = []", "a list of ids"]),
    ],
)
def test_bad_configurations_are_refused(checkpoint: Path, changes: dict[str, Any], parts: list[str]) -> None:
    edit_json(checkpoint / "config.json", **changes)
    refused(checkpoint, "config.json", *parts)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_json_is_refused(checkpoint: Path, name: str, content: bytes) -> None:
    (checkpoint / name).write_bytes(content)
    refused(checkpoint, str(checkpoint / name))


def test_only_the_supported_dtypes(checkpoint: Path, tmp_path: Path) -> None:
    refused(checkpoint, "torch.int8", "bfloat16", dtype=torch.int8)
    with pytest.raises(CheckpointError, match=re.escape("torch.float64")):
        save_model(load(checkpoint), tmp_path, dtype=torch.float64)
