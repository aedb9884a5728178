"""Fixtures that several files of unit tests need."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from lopa_ray.execution import runner
from lopa_ray.execution.attention import PackedAttention
from lopa_ray.execution.device import DEVICES
from support.paths import MODELS


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A published checkpoint that may be changed."""
    return Path(shutil.copytree(MODELS / "dream-tiny-2l", tmp_path / "model"))


@pytest.fixture(params=["lane by lane", "packed"])
def either_attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Attention as CPUs compute it by default, and as accelerators do: one call per layer, by its reference."""
    if request.param == "packed":
        monkeypatch.setattr(runner, "DEFAULT_ATTENTION", PackedAttention())
        packed = dataclasses.replace(DEVICES["cpu"], attention_backends=("reference",))
        monkeypatch.setitem(DEVICES, "cpu", packed)
    return str(request.param)
