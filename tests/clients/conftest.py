"""One server for all clients. They reach it as they reach OpenAI's: by a base URL and an API key."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lopa_lab.word_problems import Problem
from support.server_process import ServerProcess, run_server
from support.solved_problems import solved_problems

# What the clients would ask the internet for, and what they would tell it.
os.environ.update(
    DO_NOT_TRACK="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_OFFLINE="1",
    LANGSMITH_TRACING="false",
    OPENAI_AGENTS_DISABLE_TRACING="1",
)

DEMO = {"id": "demo", "group": {"num_workers": 2, "num_cpus": 0.25}}
KEY = "key-of-the-clients-2d81"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves demo, to those who have the key. At the end it has to stop as it should."""
    with run_server(tmp_path_factory.mktemp("served"), [DEMO], environment={"LOPA_API_KEYS": KEY}) as running:
        running.api_key = KEY
        yield running
        running.interrupt()


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    """Word problems that the demo model solves in one process: a server has to solve them too."""
    return [problem for problem, _ in solved_problems(seed=5, count=6)]
