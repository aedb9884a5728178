"""What a server without keys lets in, through Ray Serve's proxy."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import psutil
import pytest

from support.client_request import CHAT, ClientRequest
from support.server_process import ServerProcess, run_server

pytestmark = pytest.mark.slow  # it starts a server of its own


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without API keys."""
    entry = {"id": "demo", "group": {"num_workers": 2, "num_cpus": 0.25}}
    with run_server(tmp_path_factory.mktemp("open"), [entry]) as running:
        yield running
        running.interrupt()


def test_an_answer_names_the_id_that_is_used_and_no_other_site_gets_one(open_server: ServerProcess) -> None:
    body = ClientRequest(settings={"max_new_tokens": 8}).body()
    with httpx.Client(base_url=open_server.url, timeout=60) as client:
        for given, used in (("mine-1", True), ("not valid", False), ("a" * 200, False)):
            response = client.post(CHAT, json=body, headers={"X-Request-ID": given})
            (said,) = response.headers.get_list("x-request-id")
            assert (said == given) is used
            assert response.json()["id"] == f"chatcmpl-{said}"
        rebound = {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
        response = client.post(CHAT, json=body, headers=rebound)
        assert (response.status_code, response.json()["error"]["code"]) == (403, "host_not_allowed")


def test_all_of_it_listens_on_the_loopback(open_server: ServerProcess) -> None:
    """The metrics that Ray exports, and Ray itself. Serve's replicas listen for each other on all addresses, and have
    no setting for it."""
    (url,) = [word for word in open_server.output.split() if word.endswith("/metrics")]
    assert url.startswith("http://127.0.0.1:")
    listening = {
        (connection.laddr.ip.removeprefix("::ffff:"), process.name())
        for process in open_server.processes()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len(listening) > 5
    elsewhere = {name for address, name in listening if address != "127.0.0.1"}
    assert all(name.startswith("ray::ServeR") for name in elsewhere), elsewhere
