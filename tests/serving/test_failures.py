"""Lost processes, and a stop under load: on a server of its own, whose last test ends it."""

from __future__ import annotations

import json
import random
import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import psutil
import pytest

from support.client import SLOW, Ask, Response, told
from support.server_process import Served, serving, wait_until

pytestmark = pytest.mark.long

CHAT = "/v1/chat/completions"

RECOVERY_S = 90.0
"""A lost group is noticed within seconds; the new one loads torch and the model."""

WORKER, MASTER, REPLICA = "ray::BranchWorker", "ray::Master", "ray::ServeReplica"

ROUNDS = 7
"""Of losses, with eight requests each."""

HELD = {name: Ask(settings=SLOW, model=name) for name in ("first", "second")}

HALF = {"max_new_tokens": 150, "min_tokens": 150}
"""On top of SLOW, for many rounds."""

WORKERS = {"first": 1, "second": 2}
MODELS = [{"id": name, "group": {"num_workers": WORKERS[name], "num_cpus": 0.25}} for name in HELD]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("failing"), MODELS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[httpx.Client]:
    with server.client(limits=httpx.Limits(max_connections=64)) as made:
        yield made


@pytest.fixture(scope="module")
def held(client: httpx.Client) -> dict[str, Response]:
    """What each model says, undisturbed."""
    return {name: ask.of_server(client) for name, ask in HELD.items()}


def family(server: Served, client: httpx.Client, model: str) -> dict[str, psutil.Process]:
    """Replica, master and worker of a model. The last two are known by working when it does."""
    found = {REPLICA: server.processes(f"{REPLICA}:lopa:{model}")[0]}
    kinds = {title: server.processes(title) for title in (MASTER, WORKER)}
    spent = {process.pid: cpu_s(process) for kind in kinds.values() for process in kind}
    HELD[model].of_server(client)
    for title, kind in kinds.items():
        found[title] = max(kind, key=lambda process: cpu_s(process) - spent[process.pid])
    return found


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def ask_all(
    client: httpx.Client, pool: ThreadPoolExecutor, asks: Mapping[str, Ask] = HELD, number: int = 2
) -> dict[str, list[Future[httpx.Response]]]:
    """So many requests to each model, which are being decoded when this returns."""
    asked = {
        name: [pool.submit(client.post, CHAT, json=ask.body()) for _ in range(number)]
        for name, ask in asks.items()
    }
    time.sleep(0.5)
    assert not any(response.done() for each in asked.values() for response in each)
    return asked


def check_answers(responses: list[Future[httpx.Response]], expected: Response) -> None:
    for response in responses:
        assert told(response.result().raise_for_status().json()["choices"][0]) == expected


def streamed(client: httpx.Client, model: str) -> Iterator[tuple[float, str]]:
    """When each piece of the answer came, and the piece."""
    with client.stream("POST", CHAT, json=HELD[model].body(stream=True)) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    yield time.monotonic(), choice["delta"].get("content") or ""


@pytest.mark.parametrize("title", [MASTER, WORKER])
def test_a_stream_goes_on_when_all_workers_of_its_group_are_lost(
    server: Served, client: httpx.Client, held: dict[str, Response], title: str
) -> None:
    group = family(server, client, "first")
    with ThreadPoolExecutor(4) as pool:
        pieces = streamed(client, "first")
        got = [piece for _, piece in (next(pieces) for _ in range(4))]
        asked = ask_all(client, pool)
        group[title].kill()
        killed = last = time.monotonic()
        longest = 0.0
        for moment, piece in pieces:
            longest, last = max(longest, moment - last), moment
            got.append(piece)
        assert "".join(got) == held["first"].text
        for name, responses in asked.items():
            check_answers(responses, held[name])
    print(f"{title}: held up for {longest:.1f} s, done {last - killed:.1f} s after the loss")
    assert group[REPLICA].is_running()
    wait_until(lambda: not any(group[kind].is_running() for kind in (MASTER, WORKER)), 20, "the rest to go")
    assert client.get("/health").json()["status"] == "ok"


def test_a_lost_replica_costs_the_requests_of_its_group_only(
    server: Served, client: httpx.Client, held: dict[str, Response]
) -> None:
    group = family(server, client, "first")
    with ThreadPoolExecutor(4) as pool:
        asked = ask_all(client, pool)
        group[REPLICA].kill()
        began = time.monotonic()
        for response in asked["first"]:
            refusal = response.result()
            assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "unavailable")
            assert int(refusal.headers["retry-after"]) >= 1
        check_answers(asked["second"], held["second"])

    def answers() -> bool:
        response = client.post(CHAT, json=HELD["first"].body())
        assert response.status_code in (200, 503), response.text
        return response.status_code == 200 and told(response.json()["choices"][0]) == held["first"]

    wait_until(answers, RECOVERY_S, "another group")
    print(f"another group answered after {time.monotonic() - began:.1f} s")
    wait_until(lambda: not any(process.is_running() for process in group.values()), 20, "the old group to go")
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("title", [MASTER, REPLICA])
def test_at_random_steps(
    server: Served,
    client: httpx.Client,
    title: str,
    capsys: pytest.CaptureFixture,
) -> None:
    """Again and again. What a lost replica was decoding is refused, and answered when it is sent again."""
    draw = random.Random(title)
    asks = {name: Ask(settings={**SLOW, **HALF}, model=name) for name in HELD}
    held = {name: ask.of_server(client) for name, ask in asks.items()}
    times: list[float] = []
    asked = refused = 0

    def insist(answer: Future[httpx.Response]) -> float:
        """Send a refused request again until it is answered; returns when it was."""
        response = answer.result()
        while response.status_code == 503:
            time.sleep(0.5)
            response = client.post(CHAT, json=asks["first"].body())
        assert told(response.raise_for_status().json()["choices"][0]) == held["first"]
        return time.monotonic()

    for _ in range(ROUNDS):
        lost = family(server, client, "first")[title]
        with ThreadPoolExecutor(8) as pool:
            answers = ask_all(client, pool, asks, 4)
            time.sleep(draw.uniform(0.0, 1.0))
            lost.kill()
            killed = time.monotonic()
            check_answers(answers["second"], held["second"])
            refused += sum(answer.result().status_code == 503 for answer in answers["first"])
            times += [insist(answer) - killed for answer in answers["first"]]
            asked += 8
    assert refused == (0 if title == MASTER else asked // 2)
    with capsys.disabled():
        print(
            f"\n{title}: {ROUNDS} lost, {asked} requests, {refused} refused, those of the lost group answered after "
            f"{statistics.median(times):.1f} s (median), {max(times):.1f} s (worst)"
        )


def test_a_lost_worker_costs_no_request_where_another_is_left(
    server: Served, client: httpx.Client, held: dict[str, Response]
) -> None:
    before = {process.pid for process in server.processes(WORKER)}
    lost = family(server, client, "second")[WORKER]
    with ThreadPoolExecutor(4) as pool:
        asked = ask_all(client, pool)
        lost.kill()
        for name, responses in asked.items():
            check_answers(responses, held[name])

    def replaced() -> bool:
        now = {process.pid for process in server.processes(WORKER)}
        return len(now) == len(before) and lost.pid not in now

    wait_until(replaced, RECOVERY_S, "another worker")
    assert HELD["second"].of_server(client) == held["second"]


def test_a_stop_lets_what_is_in_flight_finish(
    server: Served, client: httpx.Client, held: dict[str, Response]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        asked = ask_all(client, pool)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not accepts(client), 2, "new requests to be refused")
        assert not any(response.done() for each in asked.values() for response in each)
        for name, responses in asked.items():
            check_answers(responses, held[name])
    server.check_stopped()


def accepts(client: httpx.Client) -> bool:
    try:
        response = client.post(CHAT, json=Ask(settings={"max_new_tokens": 1}, model="first").body())
    except httpx.ConnectError:
        return False
    if response.status_code == 503:
        assert "shutting down" in response.json()["error"]["message"]
    return response.status_code == 200
