"""Settings of all tests. Set before anything imports torch or Ray, and inherited by Ray's workers."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.update(
    OMP_NUM_THREADS="1",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_USAGE_STATS_ENABLED="0",
)
# What commands and engines remember of earlier runs is none of these tests', and not theirs to write.
os.environ["XDG_CONFIG_HOME"] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="lopa-tests-")
# Without one Ray would write one into the home folder.
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

import hypothesis
import pytest
import torch
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from support.browser import chromium

if TYPE_CHECKING:
    from openai import OpenAI
    from playwright.sync_api import Browser

    from support.server_process import ServerProcess

torch.set_num_threads(1)

# A shell that runs the tests in the background has them ignore Ctrl-C; what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples are the same in every run, and a slow machine is no failure. `make test-long` draws new ones.
hypothesis.settings.register_profile("lopa", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("new", deadline=None, derandomize=False, print_blob=True)
hypothesis.settings.load_profile("lopa")


CLIENTS = ("clients", "decision_clients")

WHOLE_FILE = re.compile(r"^pytestmark = pytest\.mark\.(medium|slow|nightly)$", re.MULTILINE)


class FileOrFolderScheduling(LoadScopeScheduling):
    """Each of pytest's processes takes a whole file; a whole folder where tests share a server or ports."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return (
            folder
            if folder in ("tests/clients", "tests/decision_clients", "tests/serving", "tests/on_nodes")
            else file
        )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileOrFolderScheduling:
    """For `pytest -n 3`, as in `make test`: half of the time tests wait for Ray and for processes to start."""
    return FileOrFolderScheduling(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out other projects' clients unless they are asked for: a conftest.py of theirs changes the environment of
    the process, and `.ci/run` alone installs them all. Leave out files of which no test is selected: importing them
    takes long."""
    if collection_path.parent == Path(__file__).parent and collection_path.name in CLIENTS:
        return config.option.markexpr != "clients" or None
    if collection_path.suffix != ".py":
        return None
    mark = WHOLE_FILE.search(collection_path.read_text(encoding="utf-8"))
    return (mark is not None and f"not {mark[1]}" in config.option.markexpr) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a program that is not there."""
    if shutil.which("chromium") is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason="no Chromium here"))


@pytest.fixture(scope="module")
def ai(server: ServerProcess) -> Iterator[OpenAI]:
    """OpenAI's client of the server, without retries."""
    with server.openai(max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; skips the test without Playwright."""
    with chromium() as opened:
        yield opened
