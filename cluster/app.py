"""The Serve application: an ingress that speaks HTTP, and one deployment per model.

    serve run cluster.app:build                      # the demo model
    serve deploy configs/serve.yaml                  # on a running cluster

`num_replicas`, `autoscaling_config`, `max_ongoing_requests` and `max_queued_requests` are Serve's
own, and stand in the `deployments` of a Serve config under the names `ingress` and of the models.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from actors.placement import worker_bundle
from cluster.serving.messages import Backend, Job, Message, Refused
from cluster.serving.replica.group_server import GroupServer
from cluster.serving.replica.ingress import Ingress
from cluster.serving.settings import ServeSettings
from lopa_ray.config.config import Config
from lopa_ray.errors import PromptError, SettingsError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

FRONT_CPUS = 0.1
"""CPUs that ingress and group servers ask for: they wait more than they compute."""

INGRESS = "ingress"

INGRESS_REQUESTS = 1000
"""Requests that an ingress replica handles at once; the groups' queues say when there are too many."""

DRAIN_SECONDS = 120.0
"""How long a replica that is to stop may finish what it has."""


class Group(GroupServer):
    """A `GroupServer` that starts with its replica and ends with it."""

    async def __init__(self, model: str, config: Mapping[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        join_logs()
        super().__init__(model, config)
        await self.start()

    async def run(self, job: Job) -> AsyncGenerator[Message | Refused, None]:  # type: ignore[override]  # it gives more
        """See `GroupServer.run` and `Refused`."""
        try:
            async with aclosing(super().run(job)) as messages:
                async for message in messages:
                    yield message
        except (PromptError, SettingsError) as error:
            yield Refused(error)

    def __del__(self) -> None:
        self.close()


def build(args: dict[str, Any]) -> Application:
    """The application that `args` (see `ServeSettings`) describe. Raises SettingsError."""
    # Serve takes no builder that has a second parameter.
    return assemble(args, {})


def assemble(args: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> Application:
    """As `build`, with options per deployment on top, which Serve else takes from its config.

    Raises SettingsError.
    """
    from ray import serve

    settings = ServeSettings(**args)
    changes = dict(overrides)
    groups: dict[str, Any] = {}
    for entry in settings.models:
        config = entry.load()
        options = group_options(entry.deployment, config) | dict(changes.pop(entry.deployment, {}))
        deployment: Any = serve.deployment(Group)
        groups[entry.id] = deployment.options(**options).bind(entry.id, config.as_dict())
    options = {
        "name": INGRESS,
        "max_ongoing_requests": INGRESS_REQUESTS,
        "ray_actor_options": {"num_cpus": FRONT_CPUS},
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
        **changes.pop(INGRESS, {}),
    }
    front: Any = serve.deployment(serve.ingress(http_app(settings))(Ingress))
    if changes:
        known = ", ".join([INGRESS, *(entry.deployment for entry in settings.models)])
        raise SettingsError(f"deployments: got {sorted(changes)[0]!r}; allowed: {known}")
    application: Application = front.options(**options).bind(**groups)
    return application


def group_options(name: str, config: Config) -> dict[str, Any]:
    """Serve's options for a group: the replica and each of its workers get a bundle of one placement group."""
    bundle = worker_bundle(config) or {"CPU": FRONT_CPUS}
    slots = config.model.max_num_seqs
    return {
        "name": name,
        "ray_actor_options": {"num_cpus": FRONT_CPUS},
        "placement_group_bundles": [{"CPU": FRONT_CPUS}, *[bundle] * config.group.num_workers],
        "placement_group_strategy": config.group.placement,
        "max_ongoing_requests": 2 * slots,
        "max_queued_requests": 4 * slots,
        # Serve replaces a replica after three failures.
        "health_check_period_s": 2.0,
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
    }


def join_logs() -> None:
    """Have this project's log lines go where Serve's go, in the replica that calls this."""
    logger = logging.getLogger("lopa")
    logger.setLevel(logging.getLogger("ray.serve").level)
    for handler in logging.getLogger("ray.serve").handlers:
        logger.addHandler(handler)


def http_app(settings: ServeSettings) -> Any:
    """A function that builds the HTTP layer inside the ingress replica: only there are its keys read."""

    def make() -> FastAPI:
        from ray import serve

        from cluster.serving.http.app import create_app
        from cluster.serving.http.auth import load_api_keys

        join_logs()
        keys = load_api_keys(settings.api_keys_file, os.environ)

        def backend() -> Backend:
            replica: Any = serve.get_replica_context().servable_object
            return cast(Backend, replica)

        return create_app(backend, settings.http.replace(api_keys=keys), send_id=False)

    return make
