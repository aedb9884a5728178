"""/metrics: the metrics of all decode groups, for Prometheus. It needs no API key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from cluster.serving.protocol.backend import Backend
from cluster.serving.protocol.messages import ReplicaMetrics


def metrics_routes(backend: Callable[[], Backend]) -> APIRouter:
    router = APIRouter()

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics(request: Request) -> Response:
        """Metrics of every decode group, whichever replica of the server is asked. `replica` says which group it is,
        and `lopa_replica_up` which groups have answered."""
        served = ServerMetrics(await backend().metrics())
        try:
            return _page(served, request.headers.get("accept", ""))
        except (TypeError, ValueError):  # its version or escaping is not valid
            return _page(served, "")

    return router


def _page(served: ServerMetrics, accept: str) -> Response:
    encode, content_type = choose_encoder(accept)
    return Response(encode(served), headers={"content-type": content_type})


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """A collector of prometheus_client's."""

    replicas: Sequence[ReplicaMetrics]

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "lopa_replica_up",
            "1: its metrics are here. 0: it starts, or did not answer.",
            labels=["model", "replica"],
        )
        families: dict[str, Metric] = {}
        for replica in self.replicas:
            up.add_metric([replica.model, replica.replica], float(replica.text is not None))
            for family in text_string_to_metric_families(replica.text or ""):
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "replica": replica.replica}
                    merged.add_sample(sample.name, labels, sample.value)
        yield up
        yield from families.values()
