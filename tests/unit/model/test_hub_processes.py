"""Names on the Hub in processes of their own, which read the variables of huggingface_hub."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.hub_client import hub_environment
from support.hub_stand_in import HubStandIn
from support.paths import ROOT

pytestmark = pytest.mark.medium

DOWNLOAD = """
import json, sys, time
from lopa_ray.model.hub.repository import download, pin
untouched = not {"huggingface_hub", "torch", "transformers"} & sys.modules.keys()
import huggingface_hub
start = time.monotonic()
name = pin(sys.argv[1])
folder = download(name, weights=True)
print(json.dumps([name, str(folder), time.monotonic() - start, untouched]))
"""


def run(environment: dict[str, str], source: str) -> tuple[Any, str]:
    """What a process printed, and its stderr."""
    done = subprocess.run(
        [sys.executable, "-c", DOWNLOAD, source],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_variables_of_the_environment_count(hub: HubStandIn, tmp_path: Path) -> None:
    home = tmp_path / "home-of-processes"
    hub.repositories["org/model"].readers = {"hf_reader"}
    commit = hub.repositories["org/model"].revisions["main"]
    with_bars = hub_environment(hub.url, home, HF_TOKEN="hf_reader", HF_HUB_DISABLE_PROGRESS_BARS="0")
    (name, folder, _, untouched), err = run(with_bars, "org/model")
    assert name == f"org/model@{commit}"
    assert folder == str(home / "hub" / "models--org--model" / "snapshots" / commit)
    assert untouched
    assert "Fetching 6 files: 100%" in err
    hub.log.clear()
    offline = hub_environment(hub.url, home, HF_HUB_OFFLINE="1")
    for source in (name, "org/model"):
        (again, same, seconds, _), err = run(offline, source)
        assert (again, same, err) == (name, folder, "")
        # Attempts to connect that are repeated would take 20.
        assert seconds < 5
    assert hub.log == []
