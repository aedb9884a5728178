"""Lost processes, and a stop under load: on a server of its own, whose last test ends it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import psutil
import pytest

from support.client_request import CHAT, SLOW, ClientRequest, ClientResponse, content, events
from support.server_process import ServerProcess, run_server
from support.waiting import ENDING_TIMEOUT_S, wait_until

pytestmark = pytest.mark.nightly

RECOVERY_S = 90.0
"""A lost group is noticed within seconds; the new one loads torch and the model."""

WORKER, MASTER, REPLICA = "ray::BranchWorker", "ray::Master", "ray::ServeReplica"

FIRST, INGRESS, PROXY = f"{REPLICA}:lopa:first", f"{REPLICA}:lopa:ingress", "ray::ProxyActor"

LONG_REQUESTS = {name: ClientRequest(settings=SLOW, model=name) for name in ("first", "second")}

SHORT_REQUEST = ClientRequest(settings={"max_new_tokens": 1}, model="first")

STREAMED = LONG_REQUESTS["first"].body(stream=True)

WORKERS = {"first": 1, "second": 2}
MODELS = [{"id": name, "group": {"num_workers": WORKERS[name], "num_cpus": 0.25}} for name in LONG_REQUESTS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    one = [{"name": "ingress", "num_replicas": 1}]
    with run_server(tmp_path_factory.mktemp("failing"), MODELS, deployments=one) as running:
        yield running


@pytest.fixture(scope="module")
def expected(client: httpx.Client) -> dict[str, ClientResponse]:
    """The response of each model, without a fault."""
    return {name: request.send(client) for name, request in LONG_REQUESTS.items()}


def group_processes(server: ServerProcess, client: httpx.Client, model: str) -> dict[str, psutil.Process]:
    """Replica, master and worker of a model. The last two are known by working when it does."""
    processes_of = {REPLICA: server.processes(f"{REPLICA}:lopa:{model}")[0]}
    by_title = {title: server.processes(title) for title in (MASTER, WORKER)}
    cpu_before = {process.pid: cpu_s(process) for processes in by_title.values() for process in processes}
    LONG_REQUESTS[model].send(client)
    for title, processes in by_title.items():
        processes_of[title] = max(processes, key=lambda process: cpu_s(process) - cpu_before[process.pid])
    return processes_of


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def send_all(client: httpx.Client, pool: ThreadPoolExecutor) -> dict[str, list[Future[httpx.Response]]]:
    """Two requests to each model, which are being decoded when this returns."""
    futures = {
        name: [pool.submit(client.post, CHAT, json=request.body()) for _ in range(2)]
        for name, request in LONG_REQUESTS.items()
    }
    time.sleep(0.5)
    assert not any(response.done() for responses in futures.values() for response in responses)
    return futures


def check_answers(responses: list[Future[httpx.Response]], expected: ClientResponse) -> None:
    for response in responses:
        assert (
            ClientResponse.from_choice(response.result().raise_for_status().json()["choices"][0]) == expected
        )


def check_refused(response: httpx.Response) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
    assert int(response.headers["retry-after"]) >= 1


def wait_until_answered(client: httpx.Client) -> float:
    """Send the first model a short request until it is answered, in whose place there may be a refusal; returns the
    seconds."""

    def is_answered() -> bool:
        try:
            response = client.post(CHAT, json=SHORT_REQUEST.body(), timeout=RECOVERY_S)
        except httpx.TransportError:
            return False
        if response.status_code != 200:
            check_refused(response)
        return response.status_code == 200

    return wait_until(is_answered, "an answer", RECOVERY_S)


def streamed(client: httpx.Client, model: str) -> Iterator[tuple[float, str]]:
    """When each piece of the answer came, and the piece."""
    with client.stream("POST", CHAT, json=LONG_REQUESTS[model].body(stream=True)) as response:
        for event in events(response.iter_lines()):
            assert "error" not in event, event
            yield time.monotonic(), content(event)


@pytest.mark.parametrize("title", [MASTER, WORKER])
def test_a_stream_goes_on_when_all_workers_of_its_group_are_lost(
    server: ServerProcess, client: httpx.Client, expected: dict[str, ClientResponse], title: str
) -> None:
    group = group_processes(server, client, "first")
    with ThreadPoolExecutor(4) as pool:
        pieces = streamed(client, "first")
        received = [piece for _, piece in (next(pieces) for _ in range(4))]
        futures = send_all(client, pool)
        group[title].kill()
        killed = last = time.monotonic()
        longest = 0.0
        for moment, piece in pieces:
            longest, last = max(longest, moment - last), moment
            received.append(piece)
        assert "".join(received) == expected["first"].text
        for name, responses in futures.items():
            check_answers(responses, expected[name])
    print(f"{title}: pause of {longest:.1f} s, done {last - killed:.1f} s after the loss")
    assert group[REPLICA].is_running()
    wait_until(
        lambda: not any(group[title].is_running() for title in (MASTER, WORKER)),
        "the rest to go",
        ENDING_TIMEOUT_S,
    )
    assert client.get("/health").json()["status"] == "ok"


def test_a_lost_replica_costs_the_requests_of_its_group_only(
    server: ServerProcess, client: httpx.Client, expected: dict[str, ClientResponse]
) -> None:
    group = group_processes(server, client, "first")
    with ThreadPoolExecutor(4) as pool:
        futures = send_all(client, pool)
        group[REPLICA].kill()
        began = time.monotonic()
        for response in futures["first"]:
            check_refused(response.result())
        check_answers(futures["second"], expected["second"])

    wait_until_answered(client)
    print(f"another group answered after {time.monotonic() - began:.1f} s")
    assert LONG_REQUESTS["first"].send(client) == expected["first"]
    wait_until(
        lambda: not any(process.is_running() for process in group.values()),
        "the old group to go",
        ENDING_TIMEOUT_S,
    )
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize("title", [MASTER, REPLICA])
def test_what_hangs_is_killed_and_replaced(
    server: ServerProcess, client: httpx.Client, expected: dict[str, ClientResponse], title: str
) -> None:
    group = group_processes(server, client, "first")
    with ThreadPoolExecutor(4) as pool:
        futures = send_all(client, pool)
        group[title].suspend()
        print(f"{title} stopped: an answer after {wait_until_answered(client):.1f} s")
        if title == MASTER:
            check_answers(futures["first"], expected["first"])
        for response in futures["first"] if title == REPLICA else []:
            check_refused(response.result())
        check_answers(futures["second"], expected["second"])
    assert group[REPLICA].is_running() == (title == MASTER)
    wait_until(lambda: not group[title].is_running(), "the hung process to go", ENDING_TIMEOUT_S)


def test_a_lost_ingress_is_a_503_and_an_error_in_streams(
    server: ServerProcess, client: httpx.Client, expected: dict[str, ClientResponse]
) -> None:
    (ingress,) = server.processes(INGRESS)
    with ThreadPoolExecutor(4) as pool, client.stream("POST", CHAT, json=STREAMED) as response:
        lines = response.iter_lines()
        next(lines)
        futures = send_all(client, pool)
        ingress.kill()
        *_, error, done = [line.removeprefix("data: ") for line in lines if line]
        assert json.loads(error)["error"]["code"] == "unavailable" and done == "[DONE]"
        for responses in futures.values():
            for refusal in responses:
                check_refused(refusal.result())
    print(f"another ingress answered after {wait_until_answered(client):.1f} s")
    assert LONG_REQUESTS["first"].send(client) == expected["first"]


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP], ids=lambda sig: sig.name)
@pytest.mark.parametrize("title", [MASTER, FIRST, INGRESS, PROXY])
def test_how_long_the_service_is_away(
    server: ServerProcess, client: httpx.Client, title: str, sig: signal.Signals
) -> None:
    """Without other requests, of the one model whose process it is."""
    lost = group_processes(server, client, "first")[MASTER] if title == MASTER else server.processes(title)[0]
    lost.send_signal(sig)
    print(f"{title} {sig.name}: {wait_until_answered(client):.1f} s")
    wait_until(lambda: not lost.is_running(), "the process to go", ENDING_TIMEOUT_S)


def test_a_stop_lets_what_is_in_flight_finish(
    server: ServerProcess, client: httpx.Client, expected: dict[str, ClientResponse]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        futures = send_all(client, pool)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not accepts(client), "new requests to be refused", ENDING_TIMEOUT_S)
        assert not any(response.done() for responses in futures.values() for response in responses)
        for name, responses in futures.items():
            check_answers(responses, expected[name])
    server.check_stopped()


def accepts(client: httpx.Client) -> bool:
    try:
        response = client.post(CHAT, json=SHORT_REQUEST.body())
    except httpx.ConnectError:
        return False
    if response.status_code == 503:
        assert "shutting down" in response.json()["error"]["message"]
    return response.status_code == 200
