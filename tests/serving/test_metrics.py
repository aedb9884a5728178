"""What Prometheus gets, and whether the dashboard asks for it."""

from __future__ import annotations

import re
import time

import httpx
import pytest

from lopa_ray.config.yaml_files import CONFIGS
from support.client_request import CHAT, SLOW, ClientRequest
from support.server_process import ServerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.medium


def exported(server: ServerProcess) -> str:
    """Ray's page, which has the metrics of the server too."""
    (url,) = re.findall(r"of all Ray: (http://\S+)\)", server.output)
    return httpx.get(url, timeout=30).raise_for_status().text


def own_metrics(server: ServerProcess) -> str:
    """The server's own page, which needs no key."""
    return httpx.get(f"{server.url}/metrics", timeout=30).raise_for_status().text


def total(text: str, name: str, **tags: str) -> float:
    """Sum of the samples of a metric that bear these tags."""
    samples = re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.MULTILINE)
    wanted = [f'{key}="{value}"' for key, value in tags.items()]
    return sum(float(value) for labels, value in samples if all(tag in labels.split(",") for tag in wanted))


def test_the_dashboard_asks_for_metrics_that_there_are(server: ServerProcess, client: httpx.Client) -> None:
    client.post(CHAT, json=ClientRequest().body()).raise_for_status()
    dashboard = (CONFIGS / "monitoring" / "grafana.json").read_text(encoding="utf-8")
    expressions = re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', dashboard)
    queried = {name for text in expressions for name in re.findall(r"\b\w*lopa_\w+", text)}
    assert len(expressions) > 10 and len(queried) > 8

    counters = set(re.findall(r"^# TYPE (\w+) counter$", own_metrics(server), re.MULTILINE))
    # A counter has no sample before the first time that it counts something.
    uncounted = {name for name in counters if f"\n{name}{{" not in own_metrics(server)}
    assert "lopa_lost_workers_total" in uncounted

    def missing() -> set[str]:
        own, of_ray = (
            set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE))
            for text in (own_metrics(server), exported(server))
        )
        return (queried - own - uncounted) | {
            f"ray_{name}" for name in queried - uncounted if f"ray_{name}" not in of_ray
        }

    wait_until(lambda: not missing(), f"the metrics {sorted(missing())}")


def test_metrics_count_what_happens(server: ServerProcess, client: httpx.Client) -> None:
    def count(name: str, **tags: str) -> float:
        return total(exported(server), name, model="demo-d2f", **tags)

    names = [
        ("ray_lopa_requests_total", {"outcome": "finished"}),
        ("ray_lopa_requests_total", {"outcome": "deadline"}),
        ("ray_lopa_requests_total", {"outcome": "refused"}),
    ]
    before = [count(name, **tags) for name, tags in names]
    request = ClientRequest(settings={"max_new_tokens": 24, "ignore_eos": True}, model="demo-d2f")
    tokens, steps = count("ray_lopa_tokens_total"), count("ray_lopa_steps_total")
    replies = [client.post(CHAT, json=request.body()).raise_for_status().json() for _ in range(2)]
    slow = ClientRequest(settings=SLOW, model="demo-d2f")
    assert client.post(CHAT, json=slow.body(lopa={"deadline": 0.3})).status_code == 504
    long = ClientRequest(settings={"max_new_tokens": 100_000}, model="demo-d2f")
    assert client.post(CHAT, json=long.body()).status_code == 400

    def seen() -> bool:
        got = [count(name, **tags) for name, tags in names]
        return got == [before[0] + 2, before[1] + 1, before[2] + 1]

    wait_until(seen, "the requests in the metrics")
    assert count("ray_lopa_tokens_total") == tokens + 48
    assert count("ray_lopa_steps_total") >= steps + sum(r["choices"][0]["lopa"]["steps"] for r in replies)
    for phase in ("plan", "scatter", "commit", "forward", "gather", "select"):
        assert count("ray_lopa_step_phase_seconds_count", phase=phase) > 0
    wait_until(lambda: count("ray_lopa_workers") == 1, "the number of workers")


def test_the_servers_own_page_has_what_happened_up_to_now(
    server: ServerProcess, client: httpx.Client
) -> None:
    request = ClientRequest(settings={"max_new_tokens": 24, "ignore_eos": True})
    before = own_metrics(server)
    for _ in range(2):
        client.post(CHAT, json=request.body()).raise_for_status()
    after = own_metrics(server)
    tokens = [total(text, "lopa_tokens_total", model="demo") for text in (before, after)]
    finished = [
        total(text, "lopa_requests_total", model="demo", outcome="finished") for text in (before, after)
    ]
    assert tokens[1] - tokens[0] == 48 and finished[1] - finished[0] == 2
    assert total(after, "lopa_replica_up") == 2
    # Ray has the same ones.
    names = set(re.findall(r"^# TYPE (lopa_\w+)", after, re.MULTILINE)) - {"lopa_replica_up"}
    assert len(names) > 10

    def missing() -> set[str]:
        there = set(re.findall(r"^# TYPE ray_(lopa_\w+)", exported(server), re.MULTILINE))
        recorded = {name for name in names if re.search(rf"^{name}\w*{{", after, re.MULTILINE)}
        return recorded - there

    wait_until(lambda: not missing(), f"the metrics {sorted(missing())} in Ray's")


@pytest.mark.slow
def test_the_servers_own_page_comes_without_a_replica_that_hangs(server: ServerProcess) -> None:
    (replica,) = server.processes("ray::ServeReplica:lopa:demo-d2f")
    replica.suspend()
    try:
        began = time.monotonic()
        page = own_metrics(server)
        assert time.monotonic() - began < 10
    finally:
        replica.resume()
    assert [total(page, "lopa_replica_up", model=model) for model in ("demo", "demo-d2f")] == [1, 0]
    assert total(page, "lopa_steps_total", model="demo") > 0
    assert total(page, "lopa_steps_total", model="demo-d2f") == 0
    assert total(own_metrics(server), "lopa_replica_up") == 2
