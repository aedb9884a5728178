"""Clients of a stand-in for the Hub, each with a cache of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import close_session, constants, file_download
from huggingface_hub.utils import _detect_agent, _http

from support.processes import subprocess_environment


def hub_environment(url: str, home: Path, **more: str) -> dict[str, str]:
    """The environment of a process whose Hub is at `url` and whose cache is in `home`."""
    inherited = {
        name: value
        for name, value in subprocess_environment().items()
        if not name.startswith(("HF_", "HUGGING"))
    }
    return inherited | {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
        **more,
    }


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, home: Path, *, offline: bool = False) -> None:
    """Have this process use the Hub at `url` and the cache in `home`.

    huggingface_hub reads its variables when it is imported, which has happened. Attempts follow each other at once.
    """
    values: Mapping[str, object] = {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "AGENT_HARNESSES_PATH": str(home / ".agent_harnesses.json"),
        "HF_HUB_OFFLINE": offline,
        "HF_HUB_DISABLE_TELEMETRY": False,
    }
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    # What is sent for statistics is asked for once in a process otherwise.
    monkeypatch.setattr(_detect_agent, "_registry", None)
    for module in (_http, file_download):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None))
    for name in os.environ.keys() & {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # The client that is there may have been made with a proxy.
    close_session()
