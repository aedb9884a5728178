"""A group whose model is named as on the Hub: each node downloads it once, and a worker that comes later loads the
same weights, whatever the name stands for by then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from programs.hub_nodes import PROMPTS
from support.hub_client import hub_environment
from support.hub_stand_in import HubStandIn
from support.paths import GOLDEN, MODELS, PROGRAMS
from support.server_process import START_TIMEOUT_S, is_ready, start_server
from support.tiny_model import SETTINGS
from support.waiting import wait_until

MODEL, OTHER, ADAPTER = (
    MODELS / "dream-tiny-4l",
    MODELS / "dream-tiny-2l",
    GOLDEN / "lora" / "dream-tiny-4l-r4",
)
WEIGHTS = "model.safetensors"

pytestmark = pytest.mark.long


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


def test_servers_and_jobs_take_names(tmp_path: Path) -> None:
    prompt = "Mia has 4 bags with 6 shells in each. How many shells does Mia have?"
    with LocalEngine.from_config(Config.load("demo")) as engine:
        expected = engine.generate(prompt)
    with HubStandIn() as hub:
        commit = hub.repository("org/demo", DEMO_MODEL)
        environment = hub_environment(hub.url, tmp_path / "home")
        server = start_server(tmp_path, "--model", "org/demo", environment=environment)
        try:
            wait_until(lambda: is_ready(server), START_TIMEOUT_S, "the server to start")
            client = server.openai()
            assert [model.id for model in client.models.list()] == ["org/demo"]
            assert client.models.retrieve("org/demo").id == "org/demo"
            chat = client.chat.completions.create(
                model="org/demo", messages=[{"role": "user", "content": prompt}]
            )
            assert chat.choices[0].message.content == expected.text
        finally:
            server.kill()
        prompts, results = tmp_path / "prompts.jsonl", tmp_path / "results.jsonl"
        prompts.write_text(json.dumps({"prompt": prompt}) + "\n")
        command = [sys.executable, "-m", "cluster.jobs", "--model", "org/demo", "--workers", "2"]
        job = subprocess.run(
            [*command, "--input", str(prompts), "--output", str(results)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert job.returncode == 0, job.stderr
        assert hub.downloads()["model.safetensors"] == 1
    assert json.loads(results.read_text())["text"] == expected.text
    spec = json.loads(Path(f"{results}.job.json").read_text())["spec"]
    assert spec["model"]["path"] == f"org/demo@{commit}"
