"""Whether this process shows a token: what a cluster answers, and when the environment is changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from actors.connection.ray_token import AUTH_MODE, follow_cluster, make_token, wants_token


class Gcs(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every call, or refuses those without a token."""

    def __init__(self, token: bool) -> None:
        self.token = token

    def service(self, call: Any) -> Any:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            if self.token and "authorization" not in dict(context.invocation_metadata()):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture(params=[True, False])
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    """Address, and whether it wants a token."""
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Gcs(request.param)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", request.param
    server.stop(None).wait()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of a process that has not imported Ray, and for which nothing is set."""
    for name in (AUTH_MODE, "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write_token(home: Path, text: str = "secret") -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(text)


def test_a_cluster_says_what_it_wants(cluster: tuple[str, bool]) -> None:
    address, wanted = cluster
    assert wants_token(address) is wanted


@pytest.mark.parametrize("source", ["file", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"])
def test_a_token_is_shown_where_it_is_wanted(
    cluster: tuple[str, bool], home: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    address, wanted = cluster
    if source == "file":
        write_token(home)
    else:
        monkeypatch.setenv(source, "something")
    monkeypatch.setenv("RAY_ADDRESS", address)
    follow_cluster()
    assert os.environ.pop(AUTH_MODE, None) == ("token" if wanted else None)


@pytest.mark.parametrize(
    "reason", ["no token", "empty token", "no address", "mode is set", "Ray is imported"]
)
def test_the_environment_stays_as_it_is(
    cluster: tuple[str, bool], home: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason != "no token":
        write_token(home, "" if reason == "empty token" else "secret")
    if reason != "no address":
        monkeypatch.setenv("RAY_ADDRESS", cluster[0])
    if reason == "mode is set":
        monkeypatch.setenv(AUTH_MODE, "disabled")
    if reason == "Ray is imported":
        monkeypatch.setitem(sys.modules, "ray", os)
    before = dict(os.environ)
    follow_cluster()
    assert dict(os.environ) == before


@pytest.fixture
def umask() -> Iterator[None]:
    """Files are readable by everybody unless their program says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("before", [None, ""])
def test_only_its_user_may_read_a_token_that_is_made(home: Path, before: str | None) -> None:
    if before is not None:
        write_token(home, before)
    make_token()
    file = home / ".ray" / "auth_token"
    assert file.stat().st_mode & 0o777 == 0o600
    token = file.read_text()
    assert len(token) == 64
    make_token()
    assert file.read_text() == token


@pytest.mark.parametrize("with_home", [False, True])
def test_a_token_is_in_the_environment_where_the_home_folder_takes_no_file(
    home: Path, monkeypatch: pytest.MonkeyPatch, with_home: bool
) -> None:
    if with_home:
        (home / ".ray").touch()
    else:
        monkeypatch.delenv("HOME")
    make_token()
    assert len(os.environ.pop("RAY_AUTH_TOKEN")) == 64


@pytest.mark.parametrize("reason", ["a token", "RAY_AUTH_TOKEN", "mode is disabled"])
def test_no_token_is_made_without_need(home: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    if reason == "a token":
        write_token(home)
    elif reason == "RAY_AUTH_TOKEN":
        monkeypatch.setenv(reason, "something")
    else:
        monkeypatch.setenv(AUTH_MODE, "disabled")
    before = {file: file.read_text() for file in home.rglob("*") if file.is_file()}
    make_token()
    assert {file: file.read_text() for file in home.rglob("*") if file.is_file()} == before
