"""The presets that ship with the package: found by name and valid; one of them names every setting."""

from __future__ import annotations

import re

import pytest
import yaml

from lopa_ray.config.yaml_files import parse_yaml, presets
from lopa_ray.decoding.decoders import parse_decoder_settings
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError

PAPER = [name for name in presets() if name.startswith("paper/")]


def test_the_documented_presets_are_there() -> None:
    assert [name for name in presets() if "/" not in name] == ["d2f-dream-7b", "demo"]
    assert {"paper/s1", "paper/d2f-dream-gsm8k", "paper/dream-vanilla"} <= presets().keys()
    numbered = [name for name in PAPER if re.fullmatch(r"paper/s\d+", name)]
    assert numbered == [f"paper/s{number}" for number in range(1, 19)]


def test_other_files_are_no_presets() -> None:
    """Ray Serve's configuration and the monitoring's are YAML files beside the presets."""
    assert not [name for name in presets() if "serve" in name or "prometheus" in name]


@pytest.mark.parametrize("name", presets())
def test_a_preset_is_valid(name: str) -> None:
    assert isinstance(Config.load(name), Config)


def test_the_preset_of_the_demo_names_every_setting() -> None:
    """It is the reference of the settings, so it leaves nothing to a default."""
    values = yaml.safe_load(presets()["demo"].read_text(encoding="utf-8"))
    config = Config.load("demo")
    assert values["model"].keys() == type(config.model).model_fields.keys()
    assert values["group"].keys() == type(config.group).model_fields.keys()
    assert values["decisions"].keys() == type(config.decisions).model_fields.keys()
    assert values["decode"].keys() == type(parse_decoder_settings(values["decode"])).model_fields.keys()


def test_the_published_setting() -> None:
    decode = Config.load("d2f-dream-7b").decode.model_dump()
    published = {
        "num_branches": 5,
        "block_size": 32,
        "block_add_threshold": 0.1,
        "decoded_token_threshold": 0.95,
        "confidence_threshold": 0.9,
        "ranking": "neg_entropy",
        "window_attention": "full",
    }
    assert {key: decode[key] for key in published} == published


@pytest.mark.parametrize("name", PAPER)
def test_presets_of_the_paper_are_short_and_explained(name: str) -> None:
    """Sampling is theirs, not the checkpoint's; answers are of 512 positions, behind prompts of at least 1,500."""
    text = presets()[name].read_text(encoding="utf-8")
    header = text.partition("\n\n")[0].splitlines()
    assert 3 <= len(header) <= 8 and all(line.startswith("# ") and len(line) <= 120 for line in header)
    assert "arXiv 2512.16229" in " ".join(header)
    config = Config.load(name)
    assert config.model.generation_config == "none" and config.model.dtype == "bfloat16"
    assert config.model.device in ("cuda", "npu") and "/" in config.model.path
    assert config.decode.max_new_tokens == 512 and config.model.max_model_len >= 512 + 1500
    assert parse_yaml(text).keys() == {"model", "group", "decode"}
    assert parse_yaml(text)["group"]["num_workers"] == config.group.num_workers


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match=r"no configuration 'mine'.*\(d2f-dream-7b, demo, models/\.\.\., paper/\.\.\.\)$"
    ):
        Config.load("mine")
    with pytest.raises(SettingsError, match=r"'paper/unknown'.*\(paper/.*paper/s9, paper/s10, .*\)$"):
        Config.load("paper/unknown")
    for name, meant in ("demmo", "demo"), ("llada2.1-mini", "models/llada2.1-mini"):
        with pytest.raises(SettingsError, match=f"no configuration '{name}'; did you mean {meant}\\?"):
            Config.load(name)
