"""Whatever keeps a repository from being read is an error that names it and says what to do."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from lopa_ray.errors import CheckpointError
from lopa_ray.model.hub.failures import named_failures
from lopa_ray.model.hub.repository import download, pin
from support.hub_client import use_hub
from support.hub_stand_in import HubStandIn

pytestmark = pytest.mark.medium

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fetch(source: str) -> Path:
    return download(source, weights=True)


def refused(read: Callable[[str], object], source: str, *parts: str) -> None:
    """The error says all of `parts`; no token is in it."""
    with pytest.raises(CheckpointError) as caught:
        read(source)
    message = str(caught.value)
    repository, _, revision = source.partition("@")
    for part in (f"{repository} at revision {revision or 'main'}: ", *parts):
        assert part in message
    assert message.count(" at revision ") == 1
    assert "hf_" not in message


@pytest.mark.parametrize("read", [pin, fetch])
@pytest.mark.parametrize(
    ("token", "source", "said"),
    [
        (None, "org/private", "Invalid username or password"),
        ("hf_other", "org/missing", "Repository not found"),
        ("hf_mistyped", "org/private", "Invalid credentials"),
        (None, "org/model@v2", "Invalid rev id"),
    ],
)
def test_what_the_hub_refuses(
    read: Callable[[str], object],
    token: str | None,
    source: str,
    said: str,
    hub: HubStandIn,
    published: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.repository("org/private", published)
    hub.repositories["org/private"].readers = {"hf_reader"}
    hub.tokens.add("hf_other")
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    refused(read, source, said, f"{hub.url}/{source.partition('@')[0]};", "no folder here", "HF_TOKEN")


def test_gated_repositories(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/model"].accepted = {"hf_accepted"}
    name = pin("org/model")
    refused(fetch, name, "GatedRepoError", "restricted", f"{hub.url}/org/model;", "HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_accepted")
    assert (fetch(name) / "model.safetensors").exists()


def test_offline(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = pin("org/model")
    download(name, weights=False)
    use_hub(monkeypatch, hub.url, tmp_path / "home", offline=True)
    asked = len(hub.log)
    for source in (name, "org/model@refs/pr/1", f"org/other@{COMMIT}"):
        refused(
            fetch, source, f"{tmp_path / 'home' / 'hub'} does not have all", "HF_HUB_OFFLINE is set; unset it"
        )
    assert (download(name, weights=False) / "config.json").exists()
    assert len(hub.log) == asked


def test_no_connection(hub: HubStandIn) -> None:
    name = pin("org/model")
    download(name, weights=False)
    with hub.unreachable():
        for source in (name, "org/other", f"org/model@{COMMIT}"):
            refused(fetch, source, "Connection refused", f"check the connection to {hub.url}")
        refused(pin, "org/other", "Connection refused", f"check the connection to {hub.url}")


def test_a_hub_that_never_answers(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = pin("org/model")
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "home")
        assert pin("org/model") == name
        refused(pin, "org/other", "ReadTimeout", "check the connection")


@pytest.mark.parametrize(
    ("failure", "cache"),
    [
        (OSError("Permission denied"), "/cache"),
        (RuntimeError("Data processing error: No space left on device"), "/cache"),  # as Xet says it
        (RuntimeError("Could not determine home directory."), "~/cache"),
    ],
)
def test_a_cache_that_cannot_be_written(
    failure: Exception, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
    with (
        pytest.raises(CheckpointError, match=f"make room in the cache {cache}, or set HF_HOME"),
        named_failures("org/model", None),
    ):
        raise failure


@pytest.mark.parametrize("status", [404, 503])
@pytest.mark.parametrize("path", ["/revision/main", "/config.json"])
def test_other_answers(hub: HubStandIn, path: str, status: int) -> None:
    name = "org/model@main" if path == "/revision/main" else pin("org/model")
    hub.statuses[path] = status
    refused(fetch, name, f"status {status}", "HF_TOKEN", "HF_ENDPOINT", "try again later")


def test_a_repository_with_nothing_to_load(hub: HubStandIn, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "README.md").write_text("nothing else")
    hub.repository("org/text", tmp_path / "text")
    refused(fetch, pin("org/text"), "no .json or .safetensors file", "name another repository")
