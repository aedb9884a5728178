"""`lopa scale`: what it shows, and what it says when a server refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.cli import app
from cluster.command_line.loopback import is_loopback
from cluster.serving.http.server_models import ModelWorkers
from lopa_ray.errors import ClusterError
from support.fake_backend import MODEL, OTHER_MODEL, Server

pytestmark = pytest.mark.medium

KEY = "an-admin-key"
HTTP_SETTINGS = {"api_keys": [KEY]}


def scale(*arguments: str, environment: dict[str, str] | None = None) -> Result:
    result = CliRunner().invoke(app, ["scale", *arguments], env=environment or {})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_command(server: Server, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}  # mine\n")
    where = ("--url", server.url, "--model", OTHER_MODEL, "--api-keys", str(keys))
    done = scale(*where, "4")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{OTHER_MODEL} group 1: 2 of 4 workers, 2 coming",
        f"{OTHER_MODEL} group 2: 4 of 4 workers; last problem: no place",
    ]
    assert server.backend.num_workers == {OTHER_MODEL: 4}
    nowhere = {"http_proxy": "http://127.0.0.1:9", "LOPA_API_KEYS": KEY}
    looked = scale(*where[:4], "--json", environment=nowhere)
    assert ModelWorkers.model_validate(json.loads(looked.stdout)).groups[0].coming == 2


def test_a_proxy_is_asked_for_other_machines(server: Server) -> None:
    proxy = {"http_proxy": server.url, "LOPA_API_KEYS": KEY}
    assert scale("--url", "http://10.0.0.1:8000", "--model", MODEL, environment=proxy).exit_code == 0


def test_addresses_of_this_machine() -> None:
    own = "127.1 0x7f.1 0 localhost LocalHost. app.localhost [::1] [::ffff:127.0.0.1] [::]"
    assert all(is_loopback(f"http://{host}:8000") for host in own.split())
    others = "10.1 example.org notlocalhost [2001:db8::1] 127.0.0.1.example.org"
    assert not any(is_loopback(f"http://{host}:8000") for host in others.split())


def test_the_command_says_why_not(server: Server) -> None:
    with_key = {"LOPA_API_KEYS": KEY}
    for arguments, environment, status, part in (
        (("--url", server.url, "--model", MODEL, "3"), {}, 2, "got no API key"),
        (("--url", server.url, "--model", "no", "3"), with_key, 2, "served: fake, team/fake-2"),
        (("--url", server.url, "--model", MODEL, "0"), with_key, 2, "num_workers: got 0"),
        (("--url", "file:///etc/passwd", "--model", MODEL), with_key, 2, "got 'file:///etc/passwd'"),
        (("--url", "http://x:99999", "--model", MODEL), with_key, 2, "--url: got 'http://x:99999'"),
        (("--url", "http://127.0.0.1:1", "--model", MODEL), with_key, 1, "cannot reach http://127.0.0.1:1"),
        (("--url", f"{server.url}/docs", "--model", MODEL), with_key, 2, "allowed: an address like"),
    ):
        done = scale(*arguments, environment=environment)
        assert (done.exit_code, done.stdout) == (status, ""), (arguments, done.stderr)
        assert done.stderr.startswith("Error: ") and part in done.stderr
    server.backend.status_error = ClusterError("the group is gone")
    done = scale("--url", server.url, "--model", MODEL, environment=with_key)
    assert done.exit_code == 1 and "answered 503: the group is gone" in done.stderr
    assert server.backend.num_workers == {}
