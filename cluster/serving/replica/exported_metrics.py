"""Metrics that are defined once, recorded once and exported twice: by Ray's agents, and as Prometheus' text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import prometheus_client
import ray.util.metrics
from prometheus_client.metrics_core import Metric


class ExportedMetric:
    """The same metric twice. Every sample has the label `model`, and the labels that its definition names."""

    def __init__(self, of_ray: Any, own: Any, model: str) -> None:
        self._of_ray, self._own, self._model = of_ray, own, model

    def inc(self, amount: float = 1, **labels: str) -> None:
        self._of_ray.inc(amount, tags={"model": self._model, **labels})
        self._own.labels(model=self._model, **labels).inc(amount)

    def set(self, value: float, **labels: str) -> None:
        self._of_ray.set(value, tags={"model": self._model, **labels})
        self._own.labels(model=self._model, **labels).set(value)

    def observe(self, value: float, **labels: str) -> None:
        self._of_ray.observe(value, tags={"model": self._model, **labels})
        self._own.labels(model=self._model, **labels).observe(value)


class ExportedMetrics:
    def __init__(self, model: str) -> None:
        self._model = model
        self._registry = prometheus_client.CollectorRegistry()

    def counter(self, name: str, documentation: str, *labels: str) -> ExportedMetric:
        """Add a counter, whose name in Prometheus ends with `_total`."""
        return self._define("Counter", name, documentation, labels)

    def gauge(self, name: str, documentation: str, *labels: str) -> ExportedMetric:
        return self._define("Gauge", name, documentation, labels)

    def histogram(
        self, name: str, documentation: str, bounds: Sequence[float], *labels: str
    ) -> ExportedMetric:
        """`bounds`: the upper limits of its buckets."""
        return self._define("Histogram", name, documentation, labels, bounds)

    def _define(
        self, kind: str, name: str, documentation: str, labels: Sequence[str], *bounds: Sequence[float]
    ) -> ExportedMetric:
        tags = ("model", *labels)
        of_ray = getattr(ray.util.metrics, kind)(name, documentation, *map(list, bounds), tag_keys=tags)
        buckets = {"buckets": bounds[0]} if bounds else {}
        own = getattr(prometheus_client, kind)(name, documentation, tags, registry=self._registry, **buckets)
        return ExportedMetric(of_ray, own, self._model)

    def text(self) -> str:
        """The samples up to now, in Prometheus' text format. May be called from any thread."""
        return prometheus_client.generate_latest(self).decode()

    def collect(self) -> Iterator[Metric]:
        """Every family, for prometheus_client, without the samples that say since when a series exists."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
