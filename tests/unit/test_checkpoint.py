"""Published checkpoints load into the right logits, and wrong ones are refused by name."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint import load_config, load_model, random_model, save_model
from lopa_ray.model.families import family_of
from lopa_ray.model.transformer import Transformer

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = GOLDEN / "models"
ROWS = [json.loads(line) for line in (GOLDEN / "forward_cases.jsonl").read_text().splitlines()]
PLAIN = [row for row in ROWS if row["steps"][0].get("attn") == "none"]
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
    kept = {key: value for key, value in content.items() if value is not ...}
    file.write_text(json.dumps(kept))


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


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODELS / "dream-tiny-2l", tmp_path / "model"))


def refused(checkpoint: Path, *parts: str, **options: Any) -> None:
    """Loading fails with one CheckpointError whose message has every part."""
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, **options)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("row", PLAIN, ids=lambda row: row["id"])
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


@pytest.mark.parametrize("name", ["dream-tiny-4l", "llada-tiny-3l", "sdar-tiny-3l"])
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
    asked = [part for name, _ in model.named_parameters() for part in family.parts(name)]
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert sorted(asked) == sorted(index["weight_map"])
    assert sum(p.numel() for p in model.parameters()) * 2 == index["metadata"]["total_size"]


LLADA_8B = {
    "architectures": ["LLaDAModelLM"],
    "model_type": "llada",
    "activation_type": "silu",
    "block_type": "llama",
    "d_model": 4096,
    "embedding_size": 126464,
    "eos_token_id": 126081,
    "include_bias": False,
    "include_qkv_bias": False,
    "layer_norm_type": "rms",
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126081,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_theta": 500000.0,
    "vocab_size": 126464,
    "weight_tying": False,
}


def test_llada_8b_is_read_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLADA_8B))
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
    (tmp_path / "config.json").write_text(json.dumps(LLADA_8B | {key: value}))
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


def test_special_ids_may_come_from_the_generation_config(checkpoint: Path) -> None:
    edit_json(checkpoint / "config.json", mask_token_id=..., eos_token_id=None)
    edit_json(checkpoint / "generation_config.json", mask_token_id=120, eos_token_id=[121])
    config = load_config(checkpoint)
    assert (config.mask_token_id, config.eos_token_id, config.bos_token_id) == (120, 121, 125)


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


def test_missing_tensors_are_named(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{Q.replace(".", "/"): None})
    refused(checkpoint, "model.safetensors", f"tensor {Q} is missing")
    edit_tensors(checkpoint, **{"model/norm/weight": None})
    refused(checkpoint, "(and 1 more) are missing")


def test_extra_tensors_are_named(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{"model/layers/2/mlp/up_proj/weight": torch.ones(128, 64)})
    refused(checkpoint, "model.safetensors", "model.layers.2.mlp.up_proj.weight is not part", "2 layers")


@pytest.mark.parametrize("shape", [(64, 32), (63, 64), (64,), (64, 64, 1)])
def test_misshapen_tensors_are_named(checkpoint: Path, shape: tuple[int, ...]) -> None:
    edit_tensors(checkpoint, **{Q.replace(".", "/"): torch.ones(shape)})
    refused(checkpoint, "model.safetensors", f"{Q} has shape {list(shape)}", "[64, 64]")


def test_quantised_tensors_are_refused(checkpoint: Path) -> None:
    edit_tensors(checkpoint, **{Q.replace(".", "/"): torch.ones((64, 64), dtype=torch.int8)})
    refused(checkpoint, "model.safetensors", Q, "torch.int8", "float32")


@pytest.mark.parametrize("keep", [0, 4, 100, 3000, -1])
def test_truncated_weights_are_refused(checkpoint: Path, keep: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refused(checkpoint, str(file), "truncated, damaged")


def test_weights_of_another_format_are_refused(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(b"\xff" * 4096)
    refused(checkpoint, str(file), "not a whole safetensors file")
    file.rename(checkpoint / "pytorch_model.bin")
    refused(checkpoint, "model.safetensors.index.json", "pytorch_model.bin")


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
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["rope_scaling", "yarn"]),
        ({"use_sliding_window": True}, ["use_sliding_window = True"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"hidden_size": ...}, ["no hidden_size"]),
        ({"hidden_size": "64"}, ["hidden_size = '64'", "integer above 0"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers = True"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers = 0"]),
        ({"rms_norm_eps": -1}, ["rms_norm_eps = -1"]),
        ({"tie_word_embeddings": 1}, ["tie_word_embeddings = 1", "true or false"]),
        ({"num_attention_heads": 5}, ["5 heads"]),
        ({"num_key_value_heads": 3}, ["3 KV heads"]),
        ({"mask_token_id": 128}, ["mask_token_id = 128", "0..127"]),
        ({"eos_token_id": [1, 2]}, ["eos_token_id = [1, 2]", "one id"]),
    ],
)
def test_bad_configurations_are_refused(checkpoint: Path, changes: dict[str, Any], parts: list[str]) -> None:
    edit_json(checkpoint / "config.json", **changes)
    refused(checkpoint, "config.json", *parts)


def test_a_mask_id_is_needed(checkpoint: Path) -> None:
    edit_json(checkpoint / "config.json", mask_token_id=...)
    (checkpoint / "generation_config.json").unlink()
    refused(checkpoint, "config.json", "no mask_token_id")


@pytest.mark.parametrize("content", ["", "{", "[1]", "\udcff"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_broken_json_is_refused(checkpoint: Path, name: str, content: str) -> None:
    (checkpoint / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(checkpoint, str(checkpoint / name))


def test_missing_files_are_named(checkpoint: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", str(tmp_path / "nowhere"), "no such folder")
    (checkpoint / "config.json").unlink()
    refused(checkpoint, str(checkpoint / "config.json"), "no such file")


def test_only_the_supported_dtypes(checkpoint: Path, tmp_path: Path) -> None:
    refused(checkpoint, "torch.int8", "bfloat16", dtype=torch.int8)
    with pytest.raises(CheckpointError, match=re.escape("torch.float64")):
        save_model(load(checkpoint), tmp_path, dtype=torch.float64)
