"""Whether the Hub can be reached is asked once, before packages try again and again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lopa_lab.hub_connection import OFFLINE_VARIABLE, use_cache_without_hub
from support.hub_client import hub_environment
from support.hub_stand_in import HubStandIn
from support.ports import free_port


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OFFLINE_VARIABLE, "")  # so that it is as before afterwards
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_a_hub_that_answers_anything_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with HubStandIn() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        assert use_cache_without_hub()
    assert not os.environ[OFFLINE_VARIABLE] and capsys.readouterr().err == ""


def test_without_a_connection_the_cache_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    assert not use_cache_without_hub()
    assert os.environ[OFFLINE_VARIABLE] == "1"
    assert "cannot be reached" in capsys.readouterr().err
    assert not use_cache_without_hub()
    assert capsys.readouterr().err == ""


def test_a_cell_whose_checkpoint_cannot_be_had_is_named_at_once(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    environment = hub_environment(f"http://127.0.0.1:{free_port()}", tmp_path)
    cell = [
        "reproduce",
        "table1",
        "--row",
        "D2F-Dream lopa",
        "--task",
        "gsm8k",
        "--local",
        "--model",
        "no/model",
    ]
    command = [sys.executable, "-m", "cluster.cli", *cell]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert (
        "cannot be reached" in done.stderr and "Not run: D2F-Dream lopa, GSM8K" in done.stdout + done.stderr
    )
    assert "Retrying" not in done.stderr
