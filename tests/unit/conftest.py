"""Fixtures that several files of unit tests need."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lopa_ray import LocalEngine
from lopa_ray.execution import canvas_attention
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.device import DEVICES
from support.fake_backend import FakeBackend, Server, serving
from support.paths import MODELS


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A published checkpoint that may be changed."""
    return Path(shutil.copytree(MODELS / "dream-tiny-2l", tmp_path / "model"))


@pytest.fixture(params=["lane by lane", pytest.param("packed", marks=pytest.mark.slow)])
def either_attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Attention as CPUs compute it by default, and as accelerators do: one call per layer, by its reference."""
    if request.param == "packed":
        monkeypatch.setattr(canvas_attention, "SDPA_ATTENTION", PackedAttention())
        packed = dataclasses.replace(DEVICES["cpu"], attention_backends=("reference",))
        monkeypatch.setitem(DEVICES, "cpu", packed)
    return str(request.param)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    """With the model of the package."""
    with LocalEngine.from_pretrained("demo") as opened:
        yield opened


@pytest.fixture(scope="module")
def module_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The HTTP application over a fake backend, with the settings in the file's HTTP_SETTINGS, if it has them."""
    with serving(**getattr(request.module, "HTTP_SETTINGS", {})) as running:
        yield running


@pytest.fixture
def server(module_server: Server) -> Server:
    """The module's server as it was at the start."""
    module_server.backend.reset()
    return module_server


@pytest.fixture
def backend(server: Server) -> FakeBackend:
    """What answers the server's requests."""
    return server.backend


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """A client without an API key. It reads no certificates, which takes longer than ten requests."""
    with httpx.Client(base_url=server.url, timeout=60, verify=False) as opened:
        yield opened
