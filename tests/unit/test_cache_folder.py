"""The cache folder, for users with a home and without one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from lopa_ray.cache_folder import cache_folder


def test_the_environment_decides_and_no_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/lopa-ray")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/of/someone")
    assert cache_folder() == Path("/home/of/someone/.cache/lopa-ray")

    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    assert cache_folder() == Path(tempfile.gettempdir()) / "lopa-ray"
