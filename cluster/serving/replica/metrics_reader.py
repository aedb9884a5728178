"""Reads the metrics of all decode groups of this application, past Serve, which lets a call wait while a replica is
busy: that is when metrics are read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError

from cluster.serving.protocol.messages import ReplicaMetrics
from lopa_ray.errors import ClusterError

READ_TIMEOUT_S = 3.0  # seconds that a replica may take. By default Prometheus ends a scrape after ten seconds


async def read_metrics(deployments: Mapping[str, str]) -> list[ReplicaMetrics]:
    """`deployments`: model → its name on Serve. It works in a replica of Serve only."""
    replicas = await asyncio.to_thread(_find_replicas, deployments)
    return await asyncio.gather(*(_read(*replica) for replica in replicas))


def _find_replicas(deployments: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """(model, id of the replica, its actor). The names of replicas' actors differ in deployment and id alone."""
    context = serve.get_replica_context()
    name = ray.get_runtime_context().get_actor_name() or ""
    front, own, separator = name.removesuffix(context.replica_tag).rpartition(context.deployment)
    if not own:
        raise ClusterError(
            f"Ray Serve has named this replica {name!r}, so others cannot be found; use Ray's metrics"
        )
    prefixes = {model: f"{front}{deployment}{separator}" for model, deployment in deployments.items()}
    replicas = []
    for actor in ray.util.list_named_actors(all_namespaces=True):
        for model, prefix in prefixes.items():
            if actor["name"].startswith(prefix):
                with suppress(ValueError):  # it has ended since it was listed
                    handle = ray.get_actor(actor["name"], actor["namespace"])
                    replicas.append((model, actor["name"].removeprefix(prefix), handle))
    return replicas


async def _read(model: str, replica: str, actor: Any) -> ReplicaMetrics:
    try:
        text = await asyncio.wait_for(actor.__ray_call__.remote(_metrics_of_replica), READ_TIMEOUT_S)
    except (RayError, TimeoutError):
        text = None
    return ReplicaMetrics(model, replica, text)


def _metrics_of_replica(_: object) -> str | None:
    server: Any = serve.get_replica_context().servable_object
    return None if server is None else server.metrics_text()
