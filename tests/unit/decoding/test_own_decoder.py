"""A decoder in a user's file, which a configuration names as `module:Class`, or a package by an entry point."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cluster.openai.lopa_options import LopaOptions
from lopa_ray.decoding.decoders import DECODERS, override_settings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from support.paths import ROOT
from support.verified_decode import PROBLEM

EXAMPLES = ROOT / "examples"
SOURCE = "own_decoder:MarginSession"

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def in_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a user who is in the folder of the file. Other tests see no decoder of it."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in [name for name, decoder in DECODERS.items() if decoder.settings.source]:
        DECODERS.pop(name).settings.source = None


def test_it_decodes_and_verified_lookahead_gives_its_tokens_in_fewer_steps() -> None:
    config = Config.load("demo", {"decode": {"decoder": SOURCE, "min_margin": 0.9, "num_branches": 1}})
    engine = LocalEngine.from_config(config)
    alone = engine.generate(PROBLEM)
    verified = engine.generate(PROBLEM, lookahead="verified", num_branches=8)
    assert alone.token_ids == verified.token_ids and alone.steps > verified.steps
    bolder = engine.generate(PROBLEM, min_margin=0.2)
    assert bolder.steps < alone.steps  # the example's own rule and setting decide


def test_the_values_of_a_configuration_name_it_in_every_process() -> None:
    given = Config.load("demo", {"decode": {"decoder": SOURCE, "min_margin": 0.5}}).given()
    assert given["decode"]["decoder"] == SOURCE
    program = f"from lopa_ray.engine.config import Config; print(Config.parse({given!r}).decode.min_margin)"
    assert python(program) == "0.5"


def test_requests_name_registered_decoders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Config.load("demo").decode
    Path(tmp_path, "harmful.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="got 'harmful:Session'; allowed: lopa, "):
        override_settings(settings, {"decoder": "harmful:Session"})
    with pytest.raises(ValueError, match="min_margin"):
        LopaOptions.model_validate({"min_margin": 0.5})
    Config.load("demo", {"decode": {"decoder": SOURCE}})
    assert override_settings(settings, {"decoder": "margin"}).decoder == "margin"
    assert LopaOptions.model_validate({"min_margin": 0.5}).decode_settings == {"min_margin": 0.5}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("no_such_file:Session", "No module named 'no_such_file'; name a module and a class"),
        ("own_decoder:Session", "has no attribute 'Session'"),
        ("own_decoder:MarginSettings", "allowed: a subclass of DecodeSession, or a Decoder"),
        ("lopa_ray.decoding.decoders.lopa:LOPA", "has the name of another decoder, 'lopa'"),
    ],
)
def test_names_of_something_else_are_refused(source: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Config.load("demo", {"decode": {"decoder": source}})


def test_an_installed_package_adds_one(tmp_path: Path) -> None:
    info = tmp_path / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lopa.decoders]\nmargin = {SOURCE}\n")
    assert python("from lopa_ray.decoding.decoders import DECODERS; print(*DECODERS)", tmp_path).endswith(
        " margin"
    )


def python(program: str, *folders: Path) -> str:
    """The output of a program in a fresh interpreter."""
    path = ":".join(map(str, (ROOT, EXAMPLES, *folders)))
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
