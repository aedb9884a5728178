"""/metrics: what every replica has recorded, once, in Prometheus' formats; and where it is recorded."""

from __future__ import annotations

import math

import httpx
import pytest
import ray.util.metrics
from prometheus_client import openmetrics
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from cluster.serving.protocol.messages import ReplicaMetrics
from cluster.serving.replica.exported_metrics import ExportedMetrics
from support.fake_backend import Server


def recorded(model: str, amount: float) -> str:
    """The text of a replica that has recorded `amount` in each of its metrics."""
    metrics = ExportedMetrics(model)
    metrics.counter("lopa_things", 'Things "so\\named".', "kind").inc(amount, kind='a\\b"c\n')
    metrics.gauge("lopa_level", "A level.").set(amount)
    metrics.histogram("lopa_seconds", "Seconds.", [0.5, 2.0]).observe(amount)
    return metrics.text()


def samples(families: list[Metric]) -> dict[tuple[str, str, str], float]:
    """(name, replica, bucket) → value."""
    return {
        (sample.name, sample.labels["replica"], sample.labels.get("le", "")): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture
def replicas(server: Server) -> list[ReplicaMetrics]:
    server.backend.replica_metrics = [
        ReplicaMetrics("a/b", "one", recorded("a/b", 0.25)),
        ReplicaMetrics("a/b", "two", recorded("a/b", 1.0)),
        ReplicaMetrics("c", "three", None),
    ]
    return server.backend.replica_metrics


def test_samples_of_all_replicas(client: httpx.Client, replicas: list[ReplicaMetrics]) -> None:
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for name, kind in (
        ("lopa_things_total", "counter"),
        ("lopa_level", "gauge"),
        ("lopa_seconds", "histogram"),
    ):
        assert response.text.count(f"# TYPE {name} {kind}\n") == 1
        assert response.text.count(f"# HELP {name} ") == 1
    families = list(text_string_to_metric_families(response.text))
    assert samples(families) == {
        ("lopa_replica_up", "one", ""): 1,
        ("lopa_replica_up", "two", ""): 1,
        ("lopa_replica_up", "three", ""): 0,
        ("lopa_things_total", "one", ""): 0.25,
        ("lopa_things_total", "two", ""): 1,
        ("lopa_level", "one", ""): 0.25,
        ("lopa_level", "two", ""): 1,
        ("lopa_seconds_bucket", "one", "0.5"): 1,
        ("lopa_seconds_bucket", "one", "2.0"): 1,
        ("lopa_seconds_bucket", "one", "+Inf"): 1,
        ("lopa_seconds_count", "one", ""): 1,
        ("lopa_seconds_sum", "one", ""): 0.25,
        ("lopa_seconds_bucket", "two", "0.5"): 0,
        ("lopa_seconds_bucket", "two", "2.0"): 1,
        ("lopa_seconds_bucket", "two", "+Inf"): 1,
        ("lopa_seconds_count", "two", ""): 1,
        ("lopa_seconds_sum", "two", ""): 1,
    }
    (things,) = [family for family in families if family.name == "lopa_things"]
    assert things.documentation == 'Things "so\\named".'
    assert [sample.labels["kind"] for sample in things.samples] == ['a\\b"c\n'] * 2
    assert {sample.labels["model"] for sample in things.samples} == {"a/b"}


def test_openmetrics_for_those_who_ask_for_it(client: httpx.Client, replicas: list[ReplicaMetrics]) -> None:
    response = client.get("/metrics", headers={"Accept": openmetrics.exposition.CONTENT_TYPE_LATEST})
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=")
    assert samples(list(parse_openmetrics(response.text)))["lopa_things_total", "two", ""] == 1


def test_no_replica_yet(client: httpx.Client) -> None:
    assert [family.name for family in text_string_to_metric_families(client.get("/metrics").text)] == [
        "lopa_replica_up"
    ]


def test_what_is_recorded_goes_to_ray_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float, dict[str, str]]] = []

    def record(self: ray.util.metrics.Metric, value: float, tags: dict[str, str]) -> None:
        seen.append((self.info["name"], value, tags))

    for kind, method in (("Counter", "inc"), ("Gauge", "set"), ("Histogram", "observe")):
        monkeypatch.setattr(getattr(ray.util.metrics, kind), method, record)
    text = recorded("m", 1.5)
    assert seen == [
        ("lopa_things", 1.5, {"model": "m", "kind": 'a\\b"c\n'}),
        ("lopa_level", 1.5, {"model": "m"}),
        ("lopa_seconds", 1.5, {"model": "m"}),
    ]
    for family in text_string_to_metric_families(text):
        assert any(math.isclose(sample.value, 1.5) for sample in family.samples), family
