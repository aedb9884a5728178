"""Checkpoints that would crash or hang their reader end with one error."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import open_model
from lopa_ray.errors import CheckpointError
from lopa_ray.model.config_json.json_file import LARGEST_BYTES
from lopa_ray.text import tokenizer_limits
from support.checkpoints import edit_json
from support.paths import MODELS


def demo_copy(tmp_path: Path) -> Path:
    """The shipped checkpoint, which may be changed."""
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))


def refused(folder: Path, *parts: str, implementation: str = "auto") -> None:
    config = Config.load("demo", {"model": {"path": str(folder), "implementation": implementation}})
    with pytest.raises(CheckpointError) as caught:
        open_model(config)
    for part in parts:
        assert part in str(caught.value)
    assert "CheckpointError" not in str(caught.value)  # one error, and none about another


SIZES = [
    ("hidden_size", 10**9),
    ("hidden_size", -64),
    ("hidden_size", 64.0),
    ("num_hidden_layers", 10**6),
    ("num_key_value_heads", 10**9),
    ("vocab_size", 2**63),
]


@pytest.mark.parametrize("implementation", ["native", "transformers"])
@pytest.mark.parametrize(("key", "value"), SIZES)
def test_absurd_sizes(checkpoint: Path, key: str, value: float, implementation: str) -> None:
    edit_json(checkpoint / "config.json", **{key: value})
    refused(checkpoint, "config.json", f"{key} = {value!r}", implementation=implementation)


@pytest.mark.parametrize("key", ["rms_norm_eps", "rope_theta"])
def test_numbers_beyond_all_floats(checkpoint: Path, key: str) -> None:
    edit_json(checkpoint / "config.json", **{key: 10**400})
    refused(checkpoint, "config.json", key)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_experts": 10**9}, "num_experts = 1000000000"),
        ({"moe_intermediate_size": 2**63}, "moe_intermediate_size"),
        ({"num_hidden_layers": 1024, "num_experts": 16384}, "experts in all layers"),
    ],
)
def test_absurd_numbers_of_experts(checkpoint: Path, changes: dict[str, Any], said: str) -> None:
    source = MODELS / "sdar-moe-tiny-3l" / "config.json"
    (checkpoint / "config.json").write_bytes(source.read_bytes())
    edit_json(checkpoint / "config.json", **changes)
    refused(checkpoint, "config.json", said)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("config.json", "pipe"),
        ("generation_config.json", "device"),
        ("tokenizer.json", "pipe"),
        ("tokenizer_config.json", "device"),
        ("special_tokens_map.json", "pipe"),
        ("chat_template.jinja", "pipe"),
        ("additional_chat_templates/tool.jinja", "device"),
    ],
)
def test_pipes_and_devices_are_not_read(tmp_path: Path, name: str, kind: str) -> None:
    folder = demo_copy(tmp_path)
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero")
    refused(folder, name, "not a regular file")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_files_of_any_size_are_not_read(tmp_path: Path, name: str) -> None:
    folder = demo_copy(tmp_path)
    with (folder / name).open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    refused(folder, name, f"{LARGEST_BYTES + 1} bytes")


def doubling(times: int) -> dict[str, Any]:
    rule = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    return {"type": "Sequence", "normalizers": [rule] * times}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("normalizer", doubling(60), "more than"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 20_000}, "more than"),
        ("pre_tokenizer", split("(a|aa)+$"), ""),
        ("pre_tokenizer", split("("), "unmatched"),
        (
            "model",
            {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["x" * 10**6, -1.0]]},
            "more than",
        ),
    ],
)
def test_rules_of_tokenizers_that_explode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(tokenizer_limits, "TRIAL_S", 2.0)
    folder = demo_copy(tmp_path)
    edit_json(folder / "tokenizer.json", **{part: value})
    refused(folder, "tokenizer.json: its tokenizer cannot encode short texts", said)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer.json", {"!": 2**31}),
        ("tokenizer.json", {"!": -1}),
        ("tokenizer.json", {"!": True}),
        ("vocab.json", {"!": 2**31}),
        ("vocab.json", {"new": 0}),
    ],
    ids=str,
)
def test_ids_of_a_vocabulary_are_unique_and_not_large(
    tmp_path: Path, name: str, change: dict[str, int]
) -> None:
    folder = demo_copy(tmp_path)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    vocab = model["vocab"] | change
    if name == "tokenizer.json":
        edit_json(folder / name, model={**model, "vocab": vocab})
    else:
        (folder / "tokenizer.json").unlink()
        (folder / name).write_text(json.dumps(vocab))
        (folder / "merges.txt").write_text("\n".join(map(" ".join, model["merges"])))
    refused(folder, f"{name}: got a vocabulary with wrong ids")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ("characters of a token", [{"id": 0, "content": "x" * 10**6, "special": False}]),
        ("special tokens", [{"id": i, "content": f"{i:0900}", "special": True} for i in range(4)]),
    ],
)
def test_added_tokens_have_limits(tmp_path: Path, said: str, tokens: list[dict[str, Any]]) -> None:
    folder = demo_copy(tmp_path)
    whole = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    new = [{**flags, **token, "id": 1792 + token["id"]} for token in tokens]
    edit_json(folder / "tokenizer.json", added_tokens=[*whole["added_tokens"], *new])
    refused(folder, str(folder), said, "allowed")


def test_a_nested_rule_is_refused(tmp_path: Path) -> None:
    folder = demo_copy(tmp_path)
    whole = json.loads((folder / "tokenizer.json").read_text())
    nested = '{"type": "Sequence", "normalizers": [' * 900 + "]}" * 900
    text = json.dumps({**whole, "normalizer": "HERE"}).replace('"HERE"', nested)
    (folder / "tokenizer.json").write_text(text)
    refused(folder, "tokenizer.json")


FIRST = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}


def begin_with(*ids: int) -> dict[str, Any]:
    """A post-processor whose template begins with these ids, or with a token that it does not list."""
    special = {"[CLS]": {"id": "[CLS]", "ids": ids, "tokens": ["[CLS]"]}} if ids else {}
    return {"type": "TemplateProcessing", "single": FIRST, "pair": FIRST, "special_tokens": special}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"post_processor": begin_with()}, "cannot encode"),
        ({"post_processor": begin_with(99_999)}, "with id 99999"),
        ({"post_processor": {"type": "BertProcessing", "sep": ["a", 9999], "cls": ["b", 0]}}, "with id 9999"),
        ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}, "added_tokens": []}, ""),
    ],
)
def test_a_tokenizer_that_cannot_encode_is_refused(tmp_path: Path, changes: Any, said: str) -> None:
    folder = demo_copy(tmp_path)
    edit_json(folder / "tokenizer.json", **changes)
    refused(folder, str(folder), said)
