"""`lopa serve` and `lopa job` with a decoder of a user's file: the tokens of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from support.client_request import CHAT
from support.paths import ROOT
from support.processes import subprocess_environment
from support.server_process import START_TIMEOUT_S, start_server
from support.verified_decode import PROBLEM
from support.waiting import wait_until

pytestmark = pytest.mark.slow

OPTIONS = ("--config", "demo", "--decoder", "own_decoder:MarginSession", "--num-branches", "4")
VERIFIED = ("--set", "decode.lookahead=verified", "--set", "group.num_cpus=0.25")


def lopa(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cluster.cli", *arguments],
        env=subprocess_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_serves_and_runs_in_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    expected = json.loads(lopa("generate", *OPTIONS, *VERIFIED, "--local", "--json", PROBLEM))["text"]

    source, output = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    source.write_text(json.dumps({"prompt": PROBLEM}) + "\n")
    lopa("job", *OPTIONS, *VERIFIED, "--input", str(source), "--output", str(output))
    assert json.loads(output.read_text())["text"] == expected

    server = start_server(tmp_path, *OPTIONS, *VERIFIED)
    try:
        wait_until(lambda: "Serving " in server.output, "the server to start", START_TIMEOUT_S)
        body = {"messages": [{"role": "user", "content": PROBLEM}]}
        answer = httpx.post(f"{server.url}{CHAT}", json=body, timeout=60).raise_for_status().json()
        assert answer["choices"][0]["message"]["content"] == expected
        bolder = {**body, "lopa": {"min_margin": 0.2, "num_branches": 1}}
        answer = httpx.post(f"{server.url}{CHAT}", json=bolder, timeout=60).raise_for_status().json()
        assert answer["lopa"]["steps"] > 0
        refused = httpx.post(
            f"{server.url}{CHAT}", json={**body, "lopa": {"decoder": "os:system"}}, timeout=60
        )
        assert refused.status_code == 400 and "allowed: lopa, " in refused.json()["error"]["message"]
        server.interrupt()
    finally:
        server.kill()
