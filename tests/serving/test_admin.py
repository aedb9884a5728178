"""The number of workers of a running server, changed in all replicas of a model while it answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.client_request import ClientRequest, local_engine
from support.server_process import run_server
from support.waiting import wait_until

DEMO = {"id": "demo", "group": {"num_workers": 1, "num_cpus": 0.25}}
KEY = "key-of-an-operator"
PATH = "/admin/models/demo/workers"


@pytest.mark.nightly
def test_workers_of_all_replicas(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    replicas = [{"name": "demo", "num_replicas": 2}]
    with run_server(tmp_path, [DEMO], deployments=replicas, options=["--api-keys", str(keys)]) as server:
        server.api_key = KEY
        with server.client() as client:

            def groups() -> list[dict[str, Any]]:
                listed: list[dict[str, Any]] = client.get(PATH).json()["groups"]
                return listed

            one = {"workers": 1, "coming": 0, "wanted": 1, "problem": None}
            assert groups() == [one, one]
            command = [sys.executable, "-m", "cluster.cli", "scale", "--url", server.url, "--json"]
            scale = [*command, "--model", "demo", "--api-keys", str(keys), "2"]
            done = subprocess.run(scale, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, done.stderr
            assert [group["wanted"] for group in json.loads(done.stdout)["groups"]] == [2, 2]
            request = ClientRequest(settings={"max_new_tokens": 96, "ignore_eos": True})
            responses = [request.send(client)]
            two = {"workers": 2, "coming": 0, "wanted": 2, "problem": None}
            wait_until(lambda: groups() == [two, two], "the second worker of each group", 180)
            responses += [request.send(client) for _ in range(2)]
            assert responses == [request.decode_locally(local_engine(DEMO))] * 3
            page = client.get("/metrics").text
            tokens = [
                float(line.split()[-1]) for line in page.splitlines() if line.startswith("lopa_tokens_total{")
            ]
            assert sum(tokens) == 3 * 96 and page.count("lopa_replica_up{") == 2
            client.post(PATH, json={"num_workers": 1}).raise_for_status()
            wait_until(lambda: [group["wanted"] for group in groups()] == [1, 1], "the groups to be told")
            wait_until(lambda: [group["workers"] for group in groups()] == [1, 1], "a worker to leave")
            assert request.send(client) == responses[0]
        server.interrupt()
