"""A group whose model is named as on the Hub: each node downloads it once, and a worker that comes later loads the
same weights, whatever the name stands for by then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lopa_ray.engine.local import LocalEngine
from programs.hub_nodes import PROMPTS
from support.hub_client import hub_environment
from support.hub_stand_in import HubStandIn
from support.paths import GOLDEN, MODELS, PROGRAMS
from support.tiny_model import SETTINGS

MODEL, OTHER, ADAPTER = (
    MODELS / "dream-tiny-4l",
    MODELS / "dream-tiny-2l",
    GOLDEN / "lora" / "dream-tiny-4l-r4",
)
WEIGHTS = "model.safetensors"

pytestmark = pytest.mark.nightly


def test_each_node_downloads_once_and_later_workers_load_the_same(tmp_path: Path) -> None:
    with HubStandIn() as hub:
        commit = hub.repository("org/model", MODEL)
        adapter = hub.repository("org/adapter", ADAPTER, revision="v1")
        program = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "hub_nodes.py"), str(tmp_path / "nodes")],
            env=hub_environment(hub.url, tmp_path / "driver"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert program.stdout is not None
        for line in program.stdout:
            if line == "decoded\n":
                break
        sent = hub.downloads()
        hub.repository("org/model", OTHER)  # the name stands for another model from now on
        before = len(hub.log)
        output, errors = program.communicate("\n", timeout=200)
        assert program.returncode == 0, errors
        asked_later = hub.log[before:]
    printed = json.loads(output.splitlines()[-1])
    assert (printed["path"], printed["lora"]) == (f"org/model@{commit}", f"org/adapter@{adapter}")
    assert sent[WEIGHTS] == 2  # the driver needs no weights
    assert sent["adapter_model.safetensors"] == 2
    assert sent["config.json"] == 3  # the driver, and both nodes
    assert asked_later == []
    assert printed["replaced"] == 2 and printed["checksums_agree"]
    with LocalEngine.from_pretrained(MODEL, lora=str(ADAPTER), max_model_len=256) as engine:
        expected = [result.token_ids for result in engine.generate(PROMPTS, SETTINGS["two_phase"])]
    assert printed["tokens"] == [expected, expected]
