"""`lopa serve`: start Ray, if need be, and the application; wait; drain; end what was started."""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError

from actors.connection.ray_connection import LOCAL_RAY, connect_to_ray, ray_address
from actors.connection.ray_node import CHECK_S, RayNode
from actors.workers.placement import check_nodes
from cluster.command_line.end_signals import stop_signals
from cluster.command_line.progress import ShownTask
from cluster.serving.app import INGRESS_DEPLOYMENT, REPLICA_CPUS, build_application, default_replicas
from cluster.serving.http.api_keys import API_KEYS_VARIABLE
from cluster.serving.serve_config_file import read_serve_config
from cluster.serving.serve_environment import serve_environment
from cluster.serving.settings import ModelEntry, ServeSettings
from lopa_ray.decoding.decoders import merge_decoder_settings, register_decoder
from lopa_ray.engine.open_model import open_model
from lopa_ray.errors import CheckpointError, ClusterError, SettingsError
from lopa_ray.execution.model_files import download_weights
from lopa_ray.execution.number_format import number_format
from lopa_ray.model.hub.repository import short_name

DRAIN_TIMEOUT_S = 600.0  # requests that take longer than this after SIGTERM are cut off


class ServeLauncher:
    def __init__(self, source: str | Path | None) -> None:
        """Read a Serve config; None: the package's file. Raises SettingsError."""
        values = read_serve_config(source)
        application = values["applications"][0]
        self.name: str = application.get("name", "lopa")
        self.route_prefix: str = application.get("route_prefix", "/")
        self.args: dict[str, Any] = application.get("args") or {}
        env_vars = (application.get("runtime_env") or {}).get("env_vars") or {}
        self.env_vars = {str(key): str(value) for key, value in env_vars.items()}
        self.logging_config: dict[str, Any] | None = values.get("logging_config")
        self.deployments = {
            entry["name"]: {key: value for key, value in entry.items() if key != "name"}
            for entry in application.get("deployments") or ()
        }
        self.proxy_location: str = values.get("proxy_location", "HeadOnly")
        listen = {"host": "127.0.0.1", "port": 8000}
        self.http_options: dict[str, Any] = listen | (values.get("http_options") or {})

    def apply_options(
        self,
        *,
        host: str | None,
        port: int | None,
        key_files: Mapping[str, str | None],
        model: str | None,
        replicas: int | None,
        sections: dict[str, dict[str, Any]],
    ) -> None:
        """`key_files` are arguments of the application. `sections` changes the first model, `model` renames it, and
        `replicas` is the number of its groups. Raises SettingsError for a wrong value."""
        self.http_options |= {"host": host or self.host, "port": port or self.port}
        self.args |= {
            name: str(Path(file).absolute()) for name, file in key_files.items() if file is not None
        }
        first, *others = self.settings.models
        changed = {name: {**getattr(first, name), **values} for name, values in sections.items()}
        register_decoder(sections.get("decode", {}).get("decoder"))
        if "decoder" in sections.get("decode", {}):  # what the file sets may be for another one
            decode = {"decoder": first.load().decode.decoder, **first.decode}
            changed["decode"] = merge_decoder_settings(decode, sections["decode"])
        renamed = {} if model is None else {"id": short_name(model)}
        entries = [first.replace(**changed, **renamed), *others]
        if first.deployment in self.deployments:
            self.deployments[entries[0].deployment] = self.deployments.pop(first.deployment)
        if replicas is not None:
            options = self.deployments.setdefault(entries[0].deployment, {})
            options.pop("autoscaling_config", None)
            options["num_replicas"] = replicas
        self.args["models"] = [entry.model_dump() for entry in entries]

    def validate(self) -> None:
        """Downloads weights. Raises SettingsError, CheckpointError and ClusterError, as replicas and proxies would."""
        # This process uses the same Hub, token and cache as the replicas.
        os.environ.update({name: value for name, value in self.env_vars.items() if name.startswith("HF_")})
        specs = []
        for entry in self.settings.models:
            _, spec, tokenizer = open_model(entry.load())
            spec.model.shard(spec.config.group.tensor_parallel_size)
            if tokenizer is None:
                raise CheckpointError(
                    f"{spec.config.model.path}: the checkpoint has no tokenizer (tokenizer.json, or vocab.json and "
                    "merges.txt), which a server needs for text; add its files"
                )
            specs.append(spec)
        build_application(self.args, self.deployments)
        if ray_address() == LOCAL_RAY:
            self.settings.http_with_keys({**os.environ, **self.env_vars})
            _check_port(self.host, self.port)
            for spec in specs:
                # Here the progress bar is visible; a replica would download without one.
                download_weights(spec.config.model)
        elif API_KEYS_VARIABLE in os.environ:
            # Ray would pass it to the cluster in a runtime environment, which every user can read.
            raise SettingsError(
                f"{API_KEYS_VARIABLE} is set, but does not reach the cluster at RAY_ADDRESS; unset it, and name a file "
                "of keys on the node of the ingress with --api-keys"
            )

    @property
    def settings(self) -> ServeSettings:
        return ServeSettings(**self.args)

    @property
    def host(self) -> str:
        return str(self.http_options["host"])

    @property
    def port(self) -> int:
        return int(self.http_options["port"])

    @property
    def num_cpus(self) -> int:
        total = REPLICA_CPUS * self._max_replicas(INGRESS_DEPLOYMENT)
        for entry in self.settings.models:
            group = entry.load().group
            total += (REPLICA_CPUS + group.max_actors * group.num_cpus) * self._max_replicas(entry.deployment)
        return math.ceil(total)

    def _max_replicas(self, deployment: str) -> int:
        options = self.deployments.get(deployment, {})
        max_replicas: int = (options.get("autoscaling_config") or {}).get("max_replicas", 1)
        num_replicas = options.get("num_replicas", default_replicas(deployment))
        return max(max_replicas, num_replicas if isinstance(num_replicas, int) else 1)

    def run(self, echo: Callable[[str], object] = print) -> None:
        """Serve until SIGINT, SIGTERM or SIGHUP, then finish the requests in flight. Raises CapacityError, and
        ClusterError also if Ray on this node ends."""
        local = ray_address() == LOCAL_RAY
        # Serve's messages about its start are of no use to the operator.
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        began = time.monotonic()
        with ExitStack() as cleanup, ShownTask("Starting Ray") as task:
            env_vars = serve_environment() | self.env_vars
            session = connect_to_ray(ray_address(), num_cpus=self.num_cpus, env_vars=env_vars)
            # A Ray that this process started ends with it, and so does everything on it.
            cleanup.callback(ray.shutdown)
            node = RayNode.of_this_process()
            for entry in self.settings.models:
                # Without this check Serve would wait forever, with a message in its log only.
                check_nodes(entry.load(), ray.nodes())
            address = f"http://{_in_url(self.host)}:{self.port}"
            status = serve.status()
            if self.name in status.applications:
                raise ClusterError(
                    f"an application {self.name!r} already runs on this cluster; stop it, or set another name "
                    "and route_prefix in the config"
                )
            if status.proxies:
                address = "the address of the Serve that runs on this cluster already"
                cleanup.callback(_call_if_alive, node, serve.delete, self.name)
            else:
                if not local:
                    cleanup.callback(_call_if_alive, node, serve.shutdown)
                task.describe("Starting Ray Serve")
                self._start_serve()
            groups = ", ".join(map(_with_workers, self.settings.models))
            task.describe(f"Loading {groups}")
            handle = self._deploy()
            if task.visible:
                task.say(f"{groups} ready after {time.monotonic() - began:.0f} s")
            task.close()
            with stop_signals() as stop:
                echo(f"Serving {', '.join(map(_with_dtype, self.settings.models))} on {address}")
                base = f"{address}{self.route_prefix.rstrip('/')}"
                metrics = f"{base}/metrics"
                if local:
                    # Ray's dashboard would write the address to a file for Prometheus, but it is not started.
                    (own,) = ray.nodes()
                    metrics += f" (of all Ray: http://{own['NodeManagerAddress']}:{own['MetricsExportPort']}/metrics)"
                for name, place in (
                    ("Playground", f"{base}/"),
                    ("API", f"{base}/v1 (reference: {base}/docs)"),
                    ("Logs", f"{session or 'of the session of Ray'}/logs/serve"),
                    ("To stop", "Ctrl-C, or SIGTERM; requests in flight are finished"),
                    ("Metrics", metrics),
                ):
                    echo(f"  {name:12}{place}")
                _wait(stop, node)
                echo("Finishing the requests in flight; press Ctrl-C again to stop at once")
                stop.clear()
                self._drain(handle, stop)
                _wait(stop, node)

    def _start_serve(self) -> None:
        try:
            serve.start(
                proxy_location=self.proxy_location,
                http_options=self.http_options,
                logging_config=self.logging_config,
            )
        except (RayError, TimeoutError) as error:
            reason = str(error.cause if isinstance(error, RayTaskError) else error).rstrip(".")
            raise ClusterError(
                f"Ray Serve did not start on port {self.port} ({reason}); if another program listens there on a node "
                "of this cluster, stop it, or choose another --port"
            ) from None

    def _deploy(self) -> Any:
        application = build_application(self.args, self.deployments)
        try:
            return serve.run(application, name=self.name, route_prefix=self.route_prefix)
        except (RuntimeError, ValueError, serve.exceptions.RayServeException) as error:
            lines = [f"the application did not start: {error}"]
            started = serve.status().applications.get(self.name)
            for name, deployment in ({} if started is None else started.deployments).items():
                if deployment.message:
                    lines.append(f"{name}: {' '.join(deployment.message.strip().splitlines()[-1:])}")
            raise ClusterError("\n".join(lines)) from None

    def _drain(self, handle: Any, stop: threading.Event) -> None:
        """Finish the requests in flight and remove the application, in a thread; then set the event."""
        drained = handle.broadcast("drain")

        def wait() -> None:
            try:
                # A replica that is lost meanwhile has no requests any more.
                drained.results(timeout_s=DRAIN_TIMEOUT_S, return_exceptions=True)
                serve.delete(self.name)
            finally:
                stop.set()

        threading.Thread(target=wait, daemon=True).start()


def _wait(stop: threading.Event, node: RayNode) -> None:
    while not stop.wait(CHECK_S):
        node.check()
    node.check()


def _call_if_alive(node: RayNode, function: Callable[..., object], *arguments: object) -> None:
    if node.alive:
        function(*arguments)


def _with_dtype(entry: ModelEntry) -> str:
    config = entry.load()
    return f"{entry.id} ({number_format(config.model, config.group.max_actors)})"


def _with_workers(entry: ModelEntry) -> str:
    workers = entry.load().group.num_workers
    return f"{entry.id} on {workers} worker{'s' * (workers > 1)}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # As Serve's proxies listen: :: takes the port of IPv4 as well.
        dualstack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        with socket.create_server((host, port), family=family, dualstack_ipv6=dualstack):
            pass
    except (OSError, UnicodeError) as error:  # UnicodeError: a name with a part that is too long
        advice = {
            errno.EADDRINUSE: "stop the program that listens there, or choose another --port",
            errno.EACCES: "choose a --port of 1024 or more",
        }.get(getattr(error, "errno", 0), "choose a --host that is a name or an address of this machine")
        reason = str(getattr(error, "strerror", error)).partition(" (while")[0]
        raise ClusterError(f"cannot listen on {_in_url(host)}:{port} ({reason}); {advice}") from None
