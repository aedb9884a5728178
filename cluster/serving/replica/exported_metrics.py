"""Metrics that are defined once, recorded once and exported twice: by Ray's agents, and as Prometheus' text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import prometheus_client
import ray.util.metrics
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

RayMetricT = TypeVar("RayMetricT", bound=ray.util.metrics.Metric)
OwnMetricT = TypeVar("OwnMetricT", bound=MetricWrapperBase)


class ExportedMetric(Generic[RayMetricT, OwnMetricT]):
    """The same metric twice. Every sample has the label `model`."""

    def __init__(self, of_ray: RayMetricT, own: OwnMetricT, model: str) -> None:
        """`of_ray` is exported by Ray, `own` by this process."""
        self._of_ray, self._own, self._model = of_ray, own, model

    def _tags(self, labels: dict[str, str]) -> dict[str, str]:
        return {"model": self._model, **labels}


class Counter(ExportedMetric[ray.util.metrics.Counter, prometheus_client.Counter]):
    """Only goes up. In Prometheus its name ends with `_total`."""

    def inc(self, amount: float = 1, **labels: str) -> None:
        """Add `amount`, which is above 0."""
        tags = self._tags(labels)
        self._of_ray.inc(amount, tags=tags)
        self._own.labels(**tags).inc(amount)


class Gauge(ExportedMetric[ray.util.metrics.Gauge, prometheus_client.Gauge]):
    """Goes up and down."""

    def set(self, value: float, **labels: str) -> None:
        """Replace the value."""
        tags = self._tags(labels)
        self._of_ray.set(value, tags=tags)
        self._own.labels(**tags).set(value)


class Histogram(ExportedMetric[ray.util.metrics.Histogram, prometheus_client.Histogram]):
    """Counts values by size."""

    def observe(self, value: float, **labels: str) -> None:
        """Add a value."""
        tags = self._tags(labels)
        self._of_ray.observe(value, tags=tags)
        self._own.labels(**tags).observe(value)


class ExportedMetrics:
    """The metrics of one replica, all of one model."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._registry = prometheus_client.CollectorRegistry()

    def counter(self, name: str, documentation: str, *labels: str) -> Counter:
        """Define a counter; `labels` are named in every call of `inc`."""
        tags = ("model", *labels)
        return Counter(
            ray.util.metrics.Counter(name, documentation, tag_keys=tags),
            prometheus_client.Counter(name, documentation, tags, registry=self._registry),
            self._model,
        )

    def gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        """Define a gauge."""
        tags = ("model", *labels)
        return Gauge(
            ray.util.metrics.Gauge(name, documentation, tag_keys=tags),
            prometheus_client.Gauge(name, documentation, tags, registry=self._registry),
            self._model,
        )

    def histogram(self, name: str, documentation: str, bounds: Sequence[float], *labels: str) -> Histogram:
        """Define a histogram; `bounds` are the upper limits of its buckets."""
        tags = ("model", *labels)
        return Histogram(
            ray.util.metrics.Histogram(name, documentation, list(bounds), tag_keys=tags),
            prometheus_client.Histogram(name, documentation, tags, registry=self._registry, buckets=bounds),
            self._model,
        )

    def text(self) -> str:
        """What was recorded up to now, in Prometheus' text format. May be called from any thread."""
        return prometheus_client.generate_latest(self).decode()

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client: every family, without the samples that say since when a series exists."""
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
