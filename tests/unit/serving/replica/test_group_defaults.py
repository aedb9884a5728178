"""What requests of a decode group get that set nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.serving.protocol.messages import ModelDefaults
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from support.local_group import local_group

pytestmark = pytest.mark.medium

WITHOUT_RANKING = ["s2d2", "s2d2_editing", "s2d2_d2f", "renoising"]
"""Decoders with no use for the ranking of the preset."""


def taken(settings: GenerationSettings) -> dict[str, Any]:
    """The settings that a decoder has a place for."""
    return settings.model_dump(mode="json", exclude={"decoder", *settings.refused})


def defaults_of(config: Config) -> tuple[ModelDefaults, LocalEngine]:
    server, engine = local_group(config)
    return asyncio.run(server.defaults()), engine


def test_defaults_are_those_that_sessions_have() -> None:
    config = Config.load("demo", {"decode": {"num_branches": 3, "max_new_tokens": 40}})
    defaults, engine = defaults_of(config)
    assert (defaults.decoder, defaults.is_demo_model) == ("lopa", True)
    assert defaults.max_model_len == config.model.max_model_len
    assert [*defaults.settings, *defaults.refused] == list(DECODERS)
    for decoder, values in defaults.settings.items():
        session = engine.create_session("hi", decoder=decoder)
        assert values == taken(session.settings)
        assert values["max_new_tokens"] == 40
    assert defaults.settings["lopa"]["num_branches"] == 3


def test_decoders_that_the_configuration_rules_out_come_with_the_error_of_a_request() -> None:
    defaults, engine = defaults_of(Config.load("demo"))
    assert list(defaults.refused) == WITHOUT_RANKING
    with pytest.raises(SettingsError) as refusal:
        engine.create_session("hi", decoder="renoising")
    assert defaults.refused["renoising"] == str(refusal.value)
    defaults, _ = defaults_of(Config.load("demo", {"decode": {"ranking": "probability"}}))
    assert not defaults.refused and defaults.settings.keys() == DECODERS.keys()


def test_decoders_without_verified_lookahead_come_with_what_a_request_needs() -> None:
    defaults, engine = defaults_of(Config.load("demo", {"decode": {"lookahead": "verified"}}))
    without = {name for name, one in DECODERS.items() if "lookahead" in one.smallest.refused}
    assert "editing" in without
    assert defaults.accepted_with == {
        key: {"lookahead": "lopa"} for key in without.difference(WITHOUT_RANKING)
    }
    assert defaults.refused.keys() == {*defaults.accepted_with, *WITHOUT_RANKING}
    for decoder, needed in defaults.accepted_with.items():
        session = engine.create_session("hi", decoder=decoder, **needed)
        assert defaults.settings[decoder] == taken(session.settings)
        assert "lookahead" not in defaults.settings[decoder]


def test_sampling_settings_are_the_checkpoints(tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO_MODEL, tmp_path / "model")
    file = folder / "generation_config.json"
    sampling = {"do_sample": True, "temperature": 0.7}
    file.write_text(json.dumps({**json.loads(file.read_text()), **sampling}))
    defaults, _ = defaults_of(Config(model={"path": str(folder)}))
    assert not defaults.is_demo_model
    assert {values.get("temperature", 0.7) for values in defaults.settings.values()} == {0.7}
