"""Sampling settings that a checkpoint's generation_config.json recommends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cluster.cli import app
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.renoising import RenoisingSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import open_model
from lopa_ray.errors import CheckpointError
from lopa_ray.model.checkpoint.generation_defaults import read_generation_defaults
from support.paths import GOLDEN

SDAR = GOLDEN / "models" / "sdar-tiny-3l"


def opened(folder: Path, **sections: dict[str, Any]) -> Config:
    model = {"path": str(folder), **sections.get("model", {})}
    return open_model(Config.parse({**sections, "model": model}))[0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}, (0.7, 0.8, 20, 1.0)),
        ({"do_sample": True, "top_k": 0, "temperature": 1}, (1.0, None, None, 1.0)),
        ({"do_sample": True}, (1.0, None, None, 1.0)),
        ({"temperature": 0.7, "top_p": 0.8}, (0.0, None, None, 1.0)),  # greedy, as transformers decodes
        ({"do_sample": False, "repetition_penalty": 1.05}, (0.0, None, None, 1.05)),
        ({"max_new_tokens": 3, "num_beams": 4}, (0.0, None, None, 1.0)),
    ],
)
def test_they_are_those_of_requests_that_say_nothing_else(
    tmp_path: Path, content: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    decode = Config().with_decode_defaults(read_generation_defaults(tmp_path)).decode
    assert (decode.temperature, decode.top_p, decode.top_k, decode.repetition_penalty) == expected


def test_what_was_set_counts_more_and_they_can_be_left_aside() -> None:
    recommended = opened(SDAR).decode
    assert (recommended.temperature, recommended.top_k, recommended.top_p) == (0.6, 20, 0.95)
    decode = opened(SDAR, decode={"temperature": 0.0, "decoder": "block_diffusion"}).decode
    assert (decode.temperature, decode.top_k, decode.decoder) == (0.0, 20, "block_diffusion")
    assert opened(SDAR, model={"generation_config": "none"}).decode == Config().decode


def test_a_configuration_that_travels_still_leaves_room_for_them() -> None:
    config = Config.parse({"model": {"path": str(SDAR)}, "decode": {"top_k": 3}})
    assert opened(SDAR, **Config.parse(config.given()).given()).decode.temperature == 0.6
    assert Config.parse(config.given()) == config


@pytest.mark.parametrize("decoder", DECODERS)
def test_settings_that_were_made_in_python_travel_with_their_decoder(decoder: str) -> None:
    config = Config(decode=DECODERS[decoder].settings(seed=3))
    assert Config.parse(config.given()) == config
    assert Config.parse(Config(decode=DECODERS[decoder].settings()).given()).decode.decoder == decoder


def test_a_printed_configuration_leaves_open_what_the_checkpoint_decides(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(f"model: {{path: {SDAR}}}\ndecode: {{top_k: 3}}\n")
    result = CliRunner().invoke(app, ["config", "--config", str(file)])
    file.write_text(result.stdout)
    decode = opened(SDAR, **yaml.safe_load(result.stdout)).decode
    assert (decode.temperature, decode.top_k, decode.top_p) == (0.6, 3, 0.95)


def test_files_with_settings_that_greedy_decoding_ignores_print_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = {
        "do_sample": False,
        "temperature": 0.7,
        "top_p": 0.8,
        "repetition_penalty": 1.1,
        "watermarking_config": {},
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert read_generation_defaults(tmp_path) == {"repetition_penalty": 1.1}
    assert capfd.readouterr() == ("", "")


OF_CANVASES = {
    "max_denoising_steps": 9,
    "t_min": 0.3,
    "t_max": 0.9,
    "stability_threshold": 2,
    "confidence_threshold": 0.01,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.2},
}


def test_those_of_diffusion_gemma(tmp_path: Path) -> None:
    """As transformers writes them. Another decoder has no place for them."""
    (tmp_path / "generation_config.json").write_text(json.dumps(OF_CANVASES))
    defaults = read_generation_defaults(tmp_path)
    decode = (
        Config.parse({"decode": {"decoder": "renoising", "t_min": 0.5}}).with_decode_defaults(defaults).decode
    )
    assert isinstance(decode, RenoisingSettings)
    assert (decode.max_denoising_steps, decode.t_min, decode.t_max) == (9, 0.5, 0.9)
    assert (decode.stability_threshold, decode.confidence_threshold, decode.entropy_bound) == (2, 0.01, 0.2)
    assert Config().with_decode_defaults(defaults) == Config()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"do_sample": true, "temperature": "warm"}',
        '{"do_sample": true, "top_k": [1]}',
        '{"do_sample": true, "top_p": 7}',
        '{"repetition_penalty": "x"}',
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str) -> None:
    for file in SDAR.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"generation_config\.json: .*; "):
        opened(tmp_path)
