"""Published checkpoints load into the right logits, and are saved as they were."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lopa_ray.engine.config import Config
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.model_loader import build_runner
from lopa_ray.execution.model_spec import ModelSpec
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.checkpoint.native_checkpoint import save_model
from lopa_ray.model.families.native import family_of
from lopa_ray.model.native_implementation import NativeImplementation
from lopa_ray.model.tensor_parallel import SingleShard
from lopa_ray.model.transformer import Transformer
from support.checkpoints import UNMASKED_CASES, edit_json, edit_tensors, load, logits, refused, shard
from support.paths import GOLDEN, MODELS, ROOT
from support.tiny_model import ALL_MODELS, random_model

SHAPES = ROOT / "lopa_lab" / "bench" / "shapes"


@pytest.mark.parametrize("row", UNMASKED_CASES, ids=lambda row: row["id"])
def test_logits_match_the_published_model(row: dict[str, Any]) -> None:
    lora = GOLDEN / "lora" / row["lora"] if "lora" in row else None
    model = load(MODELS / row["model"], lora=lora)
    step = row["steps"][0]
    expected = load_file(GOLDEN / "forward_logits.safetensors")[step["logits"]]
    torch.testing.assert_close(logits(model, step["input"]), expected, atol=5e-4, rtol=0)


def test_a_loaded_model_is_ready_to_decode() -> None:
    model = load(MODELS / "dream-tiny-2l", dtype=torch.bfloat16)
    assert not model.training
    assert all(p.dtype == torch.bfloat16 and not p.requires_grad for p in model.parameters())
    config = load_config(MODELS / "dream-tiny-2l")
    assert model.config == config
    assert (config.mask_token_id, config.eos_token_id, config.bos_token_id, config.pad_token_id) == (
        127,
        126,
        125,
        124,
    )
    assert config.shifted and config.qkv_bias and config.head_dim == 16


@pytest.mark.parametrize("tied", [False, True])
def test_what_is_saved_loads_back(tmp_path: Path, tied: bool) -> None:
    config = dataclasses.replace(load_config(MODELS / "dream-tiny-2l"), tie_word_embeddings=tied, head_dim=32)
    model = random_model(config, 7, torch.float32, "cpu")
    save_model(model, tmp_path / "saved", dtype=torch.float32)
    again = load(tmp_path / "saved")
    assert again.config == config
    assert (again.lm_head.weight is again.embed.weight) == tied
    assert torch.equal(logits(model, [1, 2, 127]), logits(again, [1, 2, 127]))


@pytest.mark.parametrize("name", ALL_MODELS)
def test_saving_reproduces_the_published_layout(name: str, tmp_path: Path) -> None:
    source = MODELS / name
    save_model(load(source), tmp_path, dtype=torch.float32)
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[tensor], after[tensor]) for tensor in before)
    published, written = (json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path))
    assert {key: written[key] for key in published.keys() & written.keys()}.items() <= published.items()
    # Ids may be in the one published file or in the other.
    assert {key for key in written.keys() - published.keys() if not key.endswith("_token_id")} <= {
        "torch_dtype"
    }
    assert load_config(tmp_path) == load_config(source)
    ids = json.loads((tmp_path / "generation_config.json").read_text())
    assert (ids["mask_token_id"], ids["eos_token_id"]) == (127, 126)


def test_what_is_published_of_sdar_4b_is_what_the_model_asks_for() -> None:
    """Its config.json and the tensor names of its shards; the weights themselves are not here."""
    folder = GOLDEN / "published" / "sdar-4b-chat"
    config = load_config(folder)
    assert (config.num_heads * config.head_dim, config.hidden_size) == (4096, 2560)
    assert config.qk_norm and not config.qkv_bias and not config.shifted
    assert (config.mask_token_id, config.eos_token_id) == (151669, 151643)
    family = family_of(config)
    with torch.device("meta"):
        model = Transformer(config)
    asked = [part for name, _ in model.named_parameters() for part in family.published_names(name)]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert sorted(asked) == sorted(index["weight_map"])
    assert sum(p.numel() for p in model.parameters()) * 2 == index["metadata"]["total_size"]


def test_llada_8b_is_read_in_its_own_words(tmp_path: Path) -> None:
    shutil.copy(SHAPES / "llada-8b.json", tmp_path / "config.json")
    config = load_config(tmp_path)
    assert (config.vocab_size, config.hidden_size, config.head_dim) == (126464, 4096, 128)
    assert (config.num_layers, config.num_kv_heads, config.intermediate_size) == (32, 32, 12288)
    assert (config.mask_token_id, config.eos_token_id) == (126336, 126081)
    assert not (config.shifted or config.qkv_bias or config.qk_norm or config.tie_word_embeddings)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_type", "sequential"),
        ("layer_norm_type", "low_precision"),
        ("alibi", True),
        ("include_bias", True),
    ],
)
def test_a_llada_of_another_shape_is_refused(key: str, value: object, tmp_path: Path) -> None:
    shutil.copy(SHAPES / "llada-8b.json", tmp_path / "config.json")
    edit_json(tmp_path / "config.json", **{key: value})
    with pytest.raises(CheckpointError, match=key):
        load_config(tmp_path)


def test_saving_in_half_precision(tmp_path: Path) -> None:
    save_model(load(MODELS / "dream-tiny-2l"), tmp_path, dtype=torch.bfloat16)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}


def test_random_weights_follow_the_seed() -> None:
    config = load_config(MODELS / "dream-tiny-2l")
    one, same, other = (random_model(config, seed, torch.float32, "cpu") for seed in (1, 1, 2))
    assert torch.equal(logits(one, [3]), logits(same, [3]))
    assert not torch.equal(logits(one, [3]), logits(other, [3]))
    assert 0.018 < one.embed.weight.std().item() < 0.022


def test_shards_load_as_one_file_does(checkpoint: Path) -> None:
    whole = load(checkpoint)
    shard(checkpoint)
    assert torch.equal(logits(whole, [5, 127, 9]), logits(load(checkpoint), [5, 127, 9]))


def test_buffers_that_are_recomputed_may_be_present(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{"model/layers/0/self_attn/rotary_emb/inv_freq": torch.ones(8)})
    load(checkpoint)


def test_a_tied_head_may_be_absent_or_equal_but_not_different(checkpoint: Path) -> None:
    edit_json(checkpoint / "config.json", tie_word_embeddings=True)
    refused(checkpoint, "model.safetensors", "lm_head.weight", "differs from model.embed_tokens.weight")
    tensors = load_file(checkpoint / "model.safetensors")
    edit_tensors(checkpoint, **{"lm_head/weight": tensors["model.embed_tokens.weight"].clone()})
    model = load(checkpoint)
    edit_tensors(checkpoint, **{"lm_head/weight": None})
    assert torch.equal(logits(load(checkpoint), [1, 2]), logits(model, [1, 2]))
    edit_json(checkpoint / "config.json", tie_word_embeddings=False)
    refused(checkpoint, "model.safetensors", "lm_head.weight is missing")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("shape", "presets", "tensors", "kv_bytes", "ids"),
    [
        ("sdar-30b-a3b", {"sdar-30b-a3b-chat"}, 18867, 2 * 2 * 48 * 4 * 128, (151669, 151643)),
        (
            "llada2.0-mini",
            {"llada2.0-mini", "llada2.1-mini", "dmax-16b", "mbd-llada2-mini"},
            14813,
            2 * 2 * 20 * 4 * 128,
            (156895, 156892),
        ),
        ("llada2.0-flash", {"llada2.0-flash"}, 24161, 2 * 2 * 32 * 4 * 128, (156895, 156892)),
        ("nemotron-labs-diffusion-8b", {"nemotron-labs-diffusion-8b"}, 309, 2 * 2 * 34 * 8 * 128, (100, 11)),
    ],
)
def test_published_shapes(
    shape: str, presets: set[str], tensors: int, kv_bytes: int, ids: tuple[int, int], tmp_path: Path
) -> None:
    """As many tensors as are published, and what `docs/models.md` says of their memory. The number of flash's tensors
    follows from mini's."""
    (tmp_path / "config.json").write_text((SHAPES / f"{shape}.json").read_text())
    config = load_config(tmp_path)
    assert (config.mask_token_id, config.eos_token_id) == ids
    assert config.shard_sizes == ((1, 2, 4) if config.experts else (1, 2, 4, 8))
    with torch.device("meta"):
        model = Transformer(config)
    family, count = family_of(config), config.experts.count if config.experts else 0
    asked = [part for name, _ in model.named_parameters() for part in family.published_names(name, count)]
    assert len(asked) == len(set(asked)) == tensors
    assert math.prod(config.kv_shape) * 2 == kv_bytes
    pages = (ROOT / "docs" / "models.md").read_text().splitlines()
    rows = [line for line in pages if any(line.startswith(f"| `models/{preset}`") for preset in presets)]
    assert len(rows) == len(presets)
    for formatted in (config, config.with_quantization("w8a8")):
        for size in (1, 2, 4) if shape == "llada2.0-flash" else (1,):
            implementation = NativeImplementation(formatted, torch.bfloat16, tp_group=SingleShard(0, size))
            assert all(f"{implementation.weight_bytes() / 2**30:.1f}" in row for row in rows)
    assert all(f"| {kv_bytes // 1024} KiB, " in row for row in rows)


def test_weights_load_where_the_mask_token_is_that_of_the_settings(tmp_path: Path) -> None:
    source = MODELS / "sdar-tiny-3l"
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text((source / name).read_text())
        edit_json(tmp_path / name, mask_token_id=...)
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    model = {"path": str(tmp_path), "max_model_len": 64}
    spec = ModelSpec.read(Config.parse({"model": {**model, "mask_token_id": 127}}))
    assert spec.model.mask_token_id == 127
    logits = build_runner(spec).logits([1, 2, 127])
    wanted = build_runner(ModelSpec.read(Config.parse({"model": {**model, "path": str(source)}})))
    assert torch.equal(logits, wanted.logits([1, 2, 127]))
