"""`lopa serve`: start Ray, if need be, and the application; wait; drain; end what was started."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import yaml

from actors.connection import LOCAL_STORE_BYTES
from cluster.app import FRONT_CPUS, INGRESS, build
from cluster.serving.settings import ServeSettings
from lopa_ray.config import SERVE, Config, parse_yaml, serve_config
from lopa_ray.errors import ClusterError, SettingsError
from lopa_ray.model.checkpoint import load_config
from lopa_ray.tokenizer import Tokenizer, require_tokenizer

IMPORT_PATH = "cluster.app:build"

DRAIN_LIMIT_S = 600.0
"""Requests that take longer than this after SIGTERM are cut off."""


class Launch:
    """What a Serve config says, checked before anything starts."""

    def __init__(self, source: str | Path | None) -> None:
        """Read a Serve config; None: the one that ships. Raises SettingsError."""
        values = _read(source)
        application = values["applications"][0]
        self.name: str = application.get("name", "lopa")
        self.route_prefix: str = application.get("route_prefix", "/")
        self.args: dict[str, Any] = application.get("args", {})
        self.environment = {
            str(key): str(value)
            for key, value in application.get("runtime_env", {}).get("env_vars", {}).items()
        }
        self.logging: dict[str, Any] | None = values.get("logging_config")
        self.deployments = {
            entry["name"]: {key: value for key, value in entry.items() if key != "name"}
            for entry in application.get("deployments", ())
        }
        http = values.get("http_options", {})
        self.host: str = http.get("host", "127.0.0.1")
        self.port: int = http.get("port", 8000)

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
        self.host, self.port = host or self.host, port or self.port
        if api_keys_file is not None:
            self.args["api_keys_file"] = str(Path(api_keys_file).absolute())
        settings = ServeSettings(**self.args)
        first = settings.models[0]
        unknown = sorted(set(sections) - set(Config.model_fields))
        if unknown:
            raise SettingsError(f"unknown section {unknown[0]!r}; allowed: {', '.join(Config.model_fields)}")
        merged = {name: {**getattr(first, name), **values} for name, values in sections.items()}
        renamed = {} if model is None else {"id": Path(model).name}
        entries = [first.but(**merged, **renamed), *settings.models[1:]]
        if first.deployment in self.deployments:
            self.deployments[entries[0].deployment] = self.deployments.pop(first.deployment)
        self.args["models"] = [entry.model_dump() for entry in entries]

    def check(self) -> None:
        """Raises SettingsError and CheckpointError for what would otherwise fail inside a replica."""
        for entry in ServeSettings(**self.args).models:
            folder = entry.load().model.folder
            load_config(folder)
            require_tokenizer(Tokenizer.from_pretrained(folder), folder)

    @property
    def cpus(self) -> int:
        """Logical CPUs that the application asks for."""
        total = FRONT_CPUS * self._replicas(INGRESS)
        for entry in ServeSettings(**self.args).models:
            group = entry.load().group
            total += (FRONT_CPUS + group.num_workers * group.num_cpus) * self._replicas(entry.deployment)
        return math.ceil(total)

    def _replicas(self, deployment: str) -> int:
        options = self.deployments.get(deployment, {})
        most: int = (options.get("autoscaling_config") or {}).get("max_replicas", 1)
        given = options.get("num_replicas")
        return max(most, given if isinstance(given, int) else 1)

    def run(self, announce: Any = print) -> None:
        """Serve until SIGINT or SIGTERM, then finish what is in flight. Raises ClusterError."""
        from ray import serve

        _check_port(self.host, self.port)
        owned = _connect(self.cpus, self.environment)
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": self.host, "port": self.port},
                logging_config=self.logging,
            )
            handle = self._deploy()
            with _signals() as stopped:
                announce(f"Serving {', '.join(self._models)} on http://{self.host}:{self.port}")
                stopped.wait()
                announce("Finishing what is in flight; once more ends at once")
                stopped.clear()
                self._drain(handle, stopped)
        finally:
            if ray.is_initialized():
                serve.shutdown() if owned else serve.delete(self.name)
                if owned:
                    ray.shutdown()

    @property
    def _models(self) -> list[str]:
        return [entry.id for entry in ServeSettings(**self.args).models]

    def _deploy(self) -> Any:
        from ray import serve

        application = build(self.args, self.deployments)
        try:
            return serve.run(application, name=self.name, route_prefix=self.route_prefix)
        except RuntimeError as error:
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


def _read(source: str | Path | None) -> dict[str, Any]:
    from pydantic import ValidationError
    from ray.serve.schema import ServeDeploySchema

    path = serve_config() if source is None or str(source) == SERVE else Path(source)
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
        schema = ServeDeploySchema(**values)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError) as error:
        raise SettingsError(f"cannot read the Serve config {path}: {error}") from None
    except (ValidationError, ValueError) as error:
        raise SettingsError(f"{path} is no Serve config: {error}") from None
    found = [application.import_path for application in schema.applications]
    if found != [IMPORT_PATH]:
        raise SettingsError(
            f"{path}: got applications {found}; allowed here: one with import_path {IMPORT_PATH} "
            "(serve run takes any)"
        )
    read: dict[str, Any] = values
    return read


def _check_port(host: str, port: int) -> None:
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise ClusterError(
            f"cannot listen on {host}:{port} ({error.strerror}); end what listens there, or choose another --port"
        ) from None


def _connect(cpus: int, environment: dict[str, str]) -> bool:
    """Whether the Ray is ours: a local one, where RAY_ADDRESS names none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.update(environment)
    address = os.environ.get("RAY_ADDRESS", "local")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        options |= {
            "num_cpus": max(os.cpu_count() or 1, cpus),
            "object_store_memory": LOCAL_STORE_BYTES,
            "include_dashboard": False,
        }
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"cannot connect to Ray at {address!r} ({error})") from None
    return address == "local"


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
