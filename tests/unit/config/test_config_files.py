"""Configurations in YAML files, and what is laid over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lopa_ray.config.group_settings import GroupSettings
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings, LopaSettings
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError


def write(folder: Path, text: str) -> Path:
    file = folder / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_with_everything(tmp_path):
    config = Config.load(
        write(
            tmp_path,
            """
            model: {path: /models/x, dtype: bfloat16, max_num_seqs: 3}
            group:
              num_workers: 4
              resources: {big: 0.5}
            decode:
              decoder: d2f
              block_size: 16
            """,
        )
    )
    assert config.model == ModelSettings(path="/models/x", dtype="bfloat16", max_num_seqs=3)
    assert config.group == GroupSettings(num_workers=4, resources={"big": 0.5})
    assert config.decode == D2FSettings(block_size=16)


@pytest.mark.parametrize("text", ["", "model:\ngroup:\ndecode:\n"])
def test_empty_files_and_sections_mean_the_defaults(tmp_path, text):
    assert Config.load(write(tmp_path, text)) == Config()


def test_overrides_lie_on_top_of_the_file(tmp_path):
    file = write(tmp_path, "decode: {num_branches: 6, block_size: 8}\nmodel: {max_num_seqs: 2}\n")
    config = Config.load(file, {"decode": {"block_size": 4}, "group": {"num_workers": 3}})
    assert config.decode == LopaSettings(num_branches=6, block_size=4)
    assert (config.model.max_num_seqs, config.group.num_workers) == (2, 3)
    assert Config.load(file, {"decode": {"decoder": "d2f"}}).decode == D2FSettings(block_size=8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1\n", ["list", "mapping"]),
        ("a: [1, 2", ["config.yaml, line 1: not YAML"]),
        ("modle: {}", ["unknown setting modle", "did you mean model?"]),
        ("decode: {decoder: x}", ["decoder: got 'x'", "lopa"]),
        ("decode: {decoder: [lopa]}", ["decoder: got ['lopa']"]),
        ("decode: lopa", ["decode", "'lopa'"]),
        ("3: 4", ["3", "name of a setting"]),
        ("decode: {3: 4}", ["3", "name of a setting"]),
    ],
)
def test_wrong_files(tmp_path, text, words):
    with pytest.raises(SettingsError) as caught:
        Config.load(write(tmp_path, text))
    for word in words:
        assert word in str(caught.value)


def test_a_message_names_the_file_whose_value_is_wrong(tmp_path):
    wrong, right = write(tmp_path, "decode: {block_size: 0}"), {"decode": {"num_branches": 2}}
    for overrides in ({}, right):
        with pytest.raises(SettingsError, match=r"config\.yaml: decode: block_size: got 0") as caught:
            Config.load(wrong, overrides)
    assert caught.value.setting
    assert Config.load(wrong, {"decode": {"block_size": 8}}).decode.block_size == 8
    with pytest.raises(SettingsError) as caught:
        Config.load(write(tmp_path, "decode: {block_size: 8}"), {"decode": {"block_size": 0}})
    assert "config.yaml" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(SettingsError, match=r"no configuration .*nowhere.*preset"):
        Config.load(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    for path in (tmp_path, tmp_path / "binary.yaml"):
        with pytest.raises(SettingsError):
            Config.load(path)


def test_overrides_of_a_section_that_is_no_mapping(tmp_path):
    with pytest.raises(SettingsError, match="decode: got 'lopa'"):
        Config.load(write(tmp_path, "decode: lopa"), {"decode": {"block_size": 3}})
