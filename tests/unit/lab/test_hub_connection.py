"""Whether the Hub can be reached is asked once, before packages try again and again."""

from __future__ import annotations

import os

import pytest

from lopa_lab.hub_connection import OFFLINE_VARIABLE, use_cache_without_hub
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
