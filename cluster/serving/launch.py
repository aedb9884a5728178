"""`lopa serve`: start Ray, if need be, and the application; wait; drain; end what was started."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray

from actors.placement import check_nodes
from actors.ray_connection import LOCAL_STORE_BYTES
from cluster.app import FRONT_CPUS, INGRESS, assemble
from cluster.serving.http.auth import VARIABLE, load_api_keys
from cluster.serving.serve_file import read_serve_file
from cluster.serving.settings import ServeSettings
from lopa_ray.config.config import Config
from lopa_ray.errors import CheckpointError, ClusterError, SettingsError
from lopa_ray.model.checkpoint import load_config
from lopa_ray.text.tokenizer import Tokenizer

LOCAL = "local"
"""The address of a Ray that is started for the server, and ends with it."""

DRAIN_LIMIT_S = 600.0
"""Requests that take longer than this after SIGTERM are cut off."""


class Launch:
    """What a Serve config says, checked before anything starts."""

    def __init__(self, source: str | Path | None) -> None:
        """Read a Serve config; None: the one that ships. Raises SettingsError."""
        values = read_serve_file(source)
        application = values["applications"][0]
        self.name: str = application.get("name", "lopa")
        self.route_prefix: str = application.get("route_prefix", "/")
        self.args: dict[str, Any] = application.get("args") or {}
        self.environment = {
            str(key): str(value)
            for key, value in ((application.get("runtime_env") or {}).get("env_vars") or {}).items()
        }
        self.logging: dict[str, Any] | None = values.get("logging_config")
        self.deployments = {
            entry["name"]: {key: value for key, value in entry.items() if key != "name"}
            for entry in application.get("deployments") or ()
        }
        self.proxy_location: str = values.get("proxy_location", "HeadOnly")
        self.http: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 8000,
            **(values.get("http_options") or {}),
        }

    def change(
        self,
        *,
        host: str | None,
        port: int | None,
        api_keys_file: str | None,
        model: str | None,
        sections: dict[str, dict[str, Any]],
    ) -> None:
        """Put what a command line says on top. `sections` changes the first model; `model` renames it."""
        self.http |= {"host": host or self.host, "port": port or self.port}
        if api_keys_file is not None:
            self.args["api_keys_file"] = str(Path(api_keys_file).absolute())
        settings = ServeSettings(**self.args)
        first = settings.models[0]
        unknown = sorted(set(sections) - set(Config.model_fields))
        if unknown:
            raise SettingsError(f"unknown section {unknown[0]!r}; allowed: {', '.join(Config.model_fields)}")
        merged = {name: {**getattr(first, name), **values} for name, values in sections.items()}
        renamed = {} if model is None else {"id": Path(model).name}
        entries = [first.replace(**merged, **renamed), *settings.models[1:]]
        if first.deployment in self.deployments:
            self.deployments[entries[0].deployment] = self.deployments.pop(first.deployment)
        self.args["models"] = [entry.model_dump() for entry in entries]

    def check(self) -> None:
        """Raises SettingsError and CheckpointError for what would otherwise fail inside a replica."""
        settings = ServeSettings(**self.args)
        for entry in settings.models:
            config = entry.load()
            folder = config.model.folder
            load_config(folder).shard(config.group.tensor_parallel_size)
            if Tokenizer.from_pretrained(folder) is None:
                raise CheckpointError(
                    f"{folder}: the checkpoint has no tokenizer (tokenizer.json, or vocab.json and merges.txt), and a "
                    "server is sent text; add its files"
                )
        assemble(self.args, self.deployments)
        if _address() == LOCAL:
            keys = load_api_keys(settings.api_keys_file, {**os.environ, **self.environment})
            settings.http.replace(api_keys=keys)
        elif VARIABLE in os.environ:
            # Ray would hand it on to the cluster in what it shows everybody there.
            raise SettingsError(
                f"{VARIABLE} is set, but does not reach the cluster at RAY_ADDRESS; unset it, and name a file "
                "of keys on the node of the ingress with --api-keys"
            )

    @property
    def host(self) -> str:
        """Address that is listened on."""
        return str(self.http["host"])

    @property
    def port(self) -> int:
        """Port that is listened on."""
        return int(self.http["port"])

    @property
    def cpus(self) -> int:
        """Logical CPUs that the application may ask for."""
        total = FRONT_CPUS * self._replicas(INGRESS)
        for entry in ServeSettings(**self.args).models:
            group = entry.load().group
            total += (FRONT_CPUS + group.max_actors * group.num_cpus) * self._replicas(entry.deployment)
        return math.ceil(total)

    def _replicas(self, deployment: str) -> int:
        options = self.deployments.get(deployment, {})
        most: int = (options.get("autoscaling_config") or {}).get("max_replicas", 1)
        given = options.get("num_replicas")
        return max(most, given if isinstance(given, int) else 1)

    def run(self, announce: Any = print) -> None:
        """Serve until SIGINT or SIGTERM, then finish what is in flight. Raises CapacityError, ClusterError."""
        from ray import serve

        local = _address() == LOCAL
        if local:
            _check_port(self.host, self.port)
        _connect(self.cpus, self.environment)
        with ExitStack() as ends:
            # A Ray of our own takes all that runs on it along.
            ends.callback(ray.shutdown)
            for entry in ServeSettings(**self.args).models:
                # Serve would wait for ever, and say so only in its log.
                check_nodes(entry.load(), ray.nodes())
            where = f"http://{self.host}:{self.port}"
            found = serve.status()
            if self.name in found.applications:
                raise ClusterError(
                    f"an application {self.name!r} runs on this cluster; end it, or give the one of the config "
                    "another name and route_prefix"
                )
            if found.proxies:
                where = "the address of the Serve that runs on this cluster already"
                ends.callback(serve.delete, self.name)
            else:
                if not local:
                    ends.callback(serve.shutdown)
                serve.start(
                    proxy_location=self.proxy_location, http_options=self.http, logging_config=self.logging
                )
            handle = self._deploy()
            with _signals() as stopped:
                if local:
                    # The dashboard, which is not started, would write it to a file for Prometheus.
                    announce(f"Metrics for Prometheus on {_metrics_url()}")
                announce(f"Serving {', '.join(self._models)} on {where}")
                stopped.wait()
                announce("Finishing what is in flight; once more ends at once")
                stopped.clear()
                self._drain(handle, stopped)

    @property
    def _models(self) -> list[str]:
        return [entry.id for entry in ServeSettings(**self.args).models]

    def _deploy(self) -> Any:
        from ray import serve

        application = assemble(self.args, self.deployments)
        try:
            return serve.run(application, name=self.name, route_prefix=self.route_prefix)
        except (RuntimeError, ValueError, serve.exceptions.RayServeException) as error:
            raise ClusterError(f"the application did not start: {error}\n{self._reasons()}") from None

    def _reasons(self) -> str:
        """The last lines of what each deployment says of itself."""
        from ray import serve

        application = serve.status().applications.get(self.name)
        deployments = {} if application is None else application.deployments
        return "\n".join(
            f"{name}: {' '.join(deployment.message.strip().splitlines()[-1:])}"
            for name, deployment in deployments.items()
            if deployment.message
        )

    def _drain(self, handle: Any, stopped: threading.Event) -> None:
        from ray import serve

        drained = handle.drain.remote()
        finished = threading.Event()

        def wait() -> None:
            try:
                drained.result(timeout_s=DRAIN_LIMIT_S)
                serve.delete(self.name)
            finally:
                finished.set()
                stopped.set()

        threading.Thread(target=wait, daemon=True).start()
        stopped.wait()


def _check_port(host: str, port: int) -> None:
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise ClusterError(
            f"cannot listen on {host}:{port} ({reason}); end what listens there, or choose another --port"
        ) from None


def _metrics_url() -> str:
    """Where the only node of a local Ray exports its metrics."""
    (node,) = ray.nodes()
    return f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"


def _address() -> str:
    return os.environ.get("RAY_ADDRESS") or LOCAL


def _connect(cpus: int, environment: dict[str, str]) -> None:
    """Start Ray, or connect to the one at RAY_ADDRESS. `environment` is what all replicas see."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    # What Serve tells of its starting means nothing to whoever starts this server.
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    address = _address()
    if address == LOCAL:
        # Processes of a local Ray inherit it.
        os.environ.update(environment)
        options |= {
            "num_cpus": max(os.cpu_count() or 1, cpus),
            "object_store_memory": LOCAL_STORE_BYTES,
            "include_dashboard": False,
        }
    else:
        options["runtime_env"] = {"env_vars": environment}
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"cannot connect to Ray at {address!r} ({error})") from None


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set."""
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
