"""The Serve application: an ingress that speaks HTTP, and one deployment per model.

    serve run cluster.serving.app:build                      # the demo model
    RAY_AUTH_MODE=token serve deploy configs/serve.yaml     # on a running cluster that requires Ray's token

Serve's own options stand in the `deployments` of its config under the names `ingress` and of the models."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, cast

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

from actors.workers.placement import worker_bundle
from cluster.serving.http.asgi_app import create_app
from cluster.serving.protocol.backend import Backend
from cluster.serving.replica.group_server import GroupServer
from cluster.serving.replica.ingress import Ingress
from cluster.serving.settings import ServeSettings
from lopa_ray.config.group_settings import MIN_HUNG_AFTER_S
from lopa_ray.decoding.decoders import register_decoder
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.execution.model_files import pin_model

REPLICA_CPUS = 0.1  # of the ingress and of a group: they wait more than they compute
INGRESS_DEPLOYMENT = "ingress"
CORES_FOR_TWO_INGRESSES = 4  # on a smaller machine the second would take time from the groups
INGRESS_MAX_ONGOING_REQUESTS = 1000
GROUP_MAX_ONGOING_REQUESTS = 1000  # `group.max_requests_per_client` bounds the requests of one client
HEALTH_CHECK_PERIOD_S = 1.0  # seconds between two health checks of a replica. They cost it nothing
GRACEFUL_SHUTDOWN_S = 120.0  # how long a replica that is to stop may finish what it has


class GroupReplica(GroupServer):
    """A `GroupServer` that starts with its replica and ends with it."""

    async def __init__(self, model: str, config: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        use_serve_log_handlers()
        super().__init__(model, config)
        await self.start()

    def __del__(self) -> None:
        self.close()


def build(args: dict[str, Any]) -> Application:
    """See `build_application`. Serve takes no builder that has a second parameter."""
    return build_application(args, {})


def build_application(args: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> Application:
    """The application that `args` (see `ServeSettings`) describe; `overrides`: options per deployment, which Serve else
    takes from its config. Raises SettingsError, and CheckpointError for a name that the Hub does not have."""
    settings = ServeSettings(**args)
    remaining = dict(overrides)
    groups: dict[str, Any] = {}
    for entry in settings.models:
        # Pinned here and not in each replica, so that all load the same weights.
        config = pin_model(entry.load())
        options = group_options(entry.deployment, config) | dict(remaining.pop(entry.deployment, {}))
        deployment: Any = serve.deployment(GroupReplica)
        groups[entry.id] = deployment.options(**options).bind(entry.id, config.given())
    options = {
        "name": INGRESS_DEPLOYMENT,
        "max_ongoing_requests": INGRESS_MAX_ONGOING_REQUESTS,
        "ray_actor_options": {"num_cpus": REPLICA_CPUS},
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": MIN_HUNG_AFTER_S / 2,
        "graceful_shutdown_timeout_s": GRACEFUL_SHUTDOWN_S,
        **remaining.pop(INGRESS_DEPLOYMENT, {}),
    }
    if "autoscaling_config" not in options:
        options.setdefault("num_replicas", default_replicas(INGRESS_DEPLOYMENT))
    ingress: Any = serve.deployment(serve.ingress(http_app_builder(settings))(Ingress))
    if remaining:
        known = ", ".join([INGRESS_DEPLOYMENT, *(entry.deployment for entry in settings.models)])
        raise SettingsError(f"deployments: got {sorted(remaining)[0]!r}; allowed: {known}")
    application: Application = ingress.options(**options).bind(**groups)
    return application


def default_replicas(deployment: str) -> int:
    return 2 if deployment == INGRESS_DEPLOYMENT and (os.cpu_count() or 1) >= CORES_FOR_TWO_INGRESSES else 1


def group_options(name: str, config: Config) -> dict[str, Any]:
    """Serve's options for a group: the replica and each of its workers get a bundle of one placement group."""
    bundle = worker_bundle(config) or {"CPU": REPLICA_CPUS}
    return {
        "name": name,
        "ray_actor_options": {"num_cpus": REPLICA_CPUS},
        "placement_group_bundles": [{"CPU": REPLICA_CPUS}, *[bundle] * config.group.num_workers],
        "placement_group_strategy": "PACK",
        # Serve's queue knows no clients, the group's does: requests do not wait in Serve's.
        "max_ongoing_requests": GROUP_MAX_ONGOING_REQUESTS,
        "max_queued_requests": GROUP_MAX_ONGOING_REQUESTS,
        # Serve replaces a replica after three failures in a row.
        "health_check_period_s": HEALTH_CHECK_PERIOD_S,
        "health_check_timeout_s": config.group.hung_after_s / 2,
        "graceful_shutdown_timeout_s": GRACEFUL_SHUTDOWN_S,
    }


def use_serve_log_handlers() -> None:
    logger = logging.getLogger("lopa")
    logger.setLevel(logging.getLogger("ray.serve").level)
    for handler in logging.getLogger("ray.serve").handlers:
        logger.addHandler(handler)


def http_app_builder(settings: ServeSettings) -> Any:
    """A function that builds the HTTP layer inside the ingress replica: only there are its keys read."""

    sources = [source for entry in settings.models if (source := entry.load().decode.source)]

    def build_http_app() -> FastAPI:
        use_serve_log_handlers()
        for source in sources:  # requests have fields for their settings
            register_decoder(source)
        http = settings.http_with_keys(os.environ)

        def backend() -> Backend:
            return cast(Backend, serve.get_replica_context().servable_object)

        return create_app(backend, http, send_id=False)

    return build_http_app
