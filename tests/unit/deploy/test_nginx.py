"""cluster/deploy/nginx.conf: it agrees with the server's settings, and does as it says where nginx is installed."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cluster.openai.errors import ErrorObject
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.launch import ServeLauncher
from support.fake_backend import CHAT, MODEL, Server, serving
from support.paths import ROOT
from support.ports import free_port
from support.waiting import wait_until

pytestmark = pytest.mark.medium

TEXT = (ROOT / "cluster" / "deploy" / "nginx.conf").read_text()
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}

MAIN = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log info;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/lopa.conf;
}}
"""


def value_of(directive: str) -> str:
    (value,) = re.findall(rf"^\s*{directive} (.*?);", TEXT, re.MULTILINE)
    return str(value)


def test_it_agrees_with_the_servers_settings() -> None:
    assert value_of("client_max_body_size") == f"{HttpSettings().max_body_bytes // 1024}k"
    launcher = ServeLauncher(None)
    assert value_of("server") == f"{launcher.host}:{launcher.port}"


def test_what_it_answers_has_openais_format() -> None:
    bodies = re.findall(r"return (\d+) '(.*)';", TEXT)
    assert [status for status, _ in bodies] == ["403", "413", "429", "503"]
    for _, body in bodies:
        ErrorObject.model_validate(json.loads(body))


@pytest.fixture
def behind() -> Iterator[Server]:
    """What nginx is in front of."""
    with serving(allowed_hosts=["lopa.example"]) as server:
        yield server


@contextlib.contextmanager
def nginx_in_front(tmp_path: Path, behind: Server, burst: int = 100) -> Iterator[str]:
    """The URL of a running nginx, whose times are shorter. `burst`: requests that one address has at once."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("needs nginx")
    port = free_port()
    changes = {
        "127.0.0.1:8000": behind.url.removeprefix("http://"),
        "listen 8080": f"listen 127.0.0.1:{port}",
        "client_header_timeout 10s": "client_header_timeout 1s",
        "client_body_timeout 10s": "client_body_timeout 1s",
        "limit_conn lopa_clients 64": "limit_conn lopa_clients 4",
        "rate=600r/m": "rate=1r/m",
        "burst=100": f"burst={burst}",
    }
    text = TEXT
    for before, after in changes.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (tmp_path / "lopa.conf").write_text(text)
    (tmp_path / "nginx.conf").write_text(MAIN.format(folder=tmp_path))
    command = [program, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    subprocess.run([*command, "-t"], check=True, capture_output=True, timeout=30)
    process = subprocess.Popen(command)

    def listens() -> bool:
        assert process.poll() is None, (tmp_path / "error.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, "nginx to listen")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def nginx(tmp_path: Path, behind: Server) -> Iterator[str]:
    with nginx_in_front(tmp_path, behind) as url:
        yield url


def error_code(response: httpx.Response, status: int) -> str | None:
    assert response.status_code == status, response.text
    return ErrorObject.model_validate(response.json()).error.code


def test_answers_pass_through(nginx: str, behind: Server) -> None:
    with httpx.Client(base_url=nginx, timeout=30) as client:
        response = client.post(CHAT, json=ASK, headers={"X-Request-ID": "mine"})
        assert (response.status_code, response.headers["x-request-id"]) == (200, "mine")
        page = {"Host": "lopa.example", "Origin": "https://lopa.example", "Sec-Fetch-Site": "same-origin"}
        assert client.post(CHAT, json=ASK, headers=page).status_code == 200
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        assert error_code(client.post(CHAT, json=ASK, headers=rebound), 403) == "host_not_allowed"
        assert client.get("/metrics").status_code == 200
        # Events of a stream come while the answer is not finished.
        behind.backend.hold = True
        with client.stream("POST", CHAT, json={**ASK, "stream": True}) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: {")
            behind.backend.hold = False
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_headers_and_bodies_are_bounded(nginx: str, behind: Server) -> None:
    # A connection each: nginx closes one with a request that it refuses, and a client may notice that too late.
    for headers in ({"X-Long": "a" * 9000}, {f"X-{at}": "a" * 1000 for at in range(50)}):
        assert httpx.get(f"{nginx}/version", headers=headers, timeout=30).status_code == 400
    refused = httpx.post(nginx + CHAT, content=b" " * 600_000, timeout=30)
    assert error_code(refused, 413) == "body_too_large"
    assert behind.backend.requests == []


@pytest.mark.parametrize(
    "begun",
    ["GET /version HTTP/1.1\r\nHost: localhost\r\nX-", "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"],
)
def test_a_client_that_never_finishes_is_ended(nginx: str, begun: str) -> None:
    if begun.startswith("POST"):
        begun += "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", int(nginx.rpartition(":")[2])), timeout=30) as connection:
        connection.sendall(begun.encode())
        while connection.recv(1000):
            pass


def test_one_address_has_a_number_of_connections(nginx: str, behind: Server) -> None:
    behind.backend.hold = True
    with httpx.Client(base_url=nginx, timeout=30) as client:
        streams = [
            client.send(client.build_request("POST", CHAT, json={**ASK, "stream": True}), stream=True)
            for _ in range(4)
        ]
        assert [stream.status_code for stream in streams] == [200] * 4
        refused = client.post(CHAT, json=ASK)
        assert error_code(refused, 429) == "rate_limit_exceeded" and refused.headers["retry-after"]
        for stream in streams:
            stream.close()


def test_one_address_has_a_number_of_requests(tmp_path: Path, behind: Server) -> None:
    with nginx_in_front(tmp_path, behind, burst=1) as url:
        responses = [httpx.post(url + CHAT, json=ASK, timeout=30) for _ in range(3)]
    assert [response.status_code for response in responses] == [200, 200, 429]
    assert error_code(responses[2], 429) == "rate_limit_exceeded" and responses[2].headers["retry-after"]


def test_the_servers_own_errors_pass_and_a_server_that_is_gone_is_a_503(tmp_path: Path) -> None:
    with contextlib.ExitStack() as ended:
        with serving() as server:
            url = ended.enter_context(nginx_in_front(tmp_path, server))
            server.backend.status_error = ValueError("x")
            own = httpx.get(f"{url}/health", timeout=30)
            assert error_code(own, 503) == "unavailable" and "does not answer" in own.text
        gone = httpx.get(f"{url}/health", timeout=30)
        assert error_code(gone, 503) == "unavailable" and gone.headers["retry-after"] == "5"
