"""The connection to Ray that all engines of one driver share."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray._private import ray_constants
from ray.exceptions import AuthenticationError

from actors.connection.ray_node import RayNode
from actors.connection.ray_token import ANSWER_TIMEOUT_S, AUTH_MODE, is_host_and_port, make_token, wants_token
from actors.workers.node_weights import STORE_SHARE
from actors.workers.placement import check_nodes, check_resources
from lopa_ray.config.execution_config import ExecutionConfig
from lopa_ray.errors import ClusterError
from lopa_ray.execution.model_spec import ModelSpec

LOCAL_STORE_BYTES = 200 * 2**20  # steps are small, and a collective goes past the object store
LOCAL_RAY = "local"  # a Ray on this machine that ends with the process that started it

TOKEN_ADVICE = (
    "have the token of the cluster's head in ~/.ray/auth_token (copy the head's), in RAY_AUTH_TOKEN, or in a file that "
    "RAY_AUTH_TOKEN_PATH names, and set RAY_AUTH_MODE=token in the environment of the process"
)

ATTEMPTS_VARIABLE = "RAY_gcs_server_port_wait_time_s"
"""The environment variable that Ray 2.60 takes for the number of attempts to connect, a second apart."""

KILL_TIMEOUT_VARIABLE = "RAY_kill_worker_timeout_milliseconds"
"""Ray 2.60's time for a process to end by itself before it is killed, 5000 by default. A stopped process (SIGSTOP)
holds its resources until then."""

KILL_TIMEOUT_MS = "1000"

LOCAL_CONSTANTS = {"ENABLE_RAY_CLUSTER": False, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": False}
"""Ray's constants as a local Ray has them: without clusters Ray 2.60 listens on loopback addresses only, and under `uv
run` it would have processes make an environment of their own from the working directory."""

OTHERS_ENVIRONMENTS = ("RAY_RUNTIME_ENV_HOOK", "RAY_JOB_CONFIG_JSON_ENV_VAR")
"""Environment variables by which processes of a local Ray would get the runtime environment of a cluster or job."""


class RayConnection:
    """One engine's use of Ray. A Ray that was started for engines ends with the last of them."""

    _owners: ClassVar[set[RayConnection]] = set()
    """Connections to the local Ray that this process started and that was not shut down since."""

    def __init__(self, config: ExecutionConfig, address: str | None = None) -> None:
        """Connect unless that is done already: to `address`, RAY_ADDRESS or a local Ray with enough logical CPUs.
        Raises ClusterError if there is no such cluster, and CapacityError if it cannot hold the group."""
        if not ray.is_initialized():
            RayConnection._owners.clear()
            address = address or ray_address()
            connect_to_ray(
                address,
                num_cpus=math.ceil(config.group.max_actors * config.group.num_cpus),
                object_store_memory=LOCAL_STORE_BYTES + _bytes_to_share(config),
            )
            owned = address == LOCAL_RAY
        else:
            owned = bool(RayConnection._owners)
        if owned:
            RayConnection._owners.add(self)
        self._session = _ray_session()
        self._node = RayNode.of_this_process()
        try:
            # On a local Ray no other program frees resources; on a cluster others may.
            if owned:
                check_resources(config, ray.available_resources())
            else:
                check_nodes(config, ray.nodes())
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """Raises ClusterError if Ray was shut down since, though it may run anew, or has ended on this node."""
        if not (ray.is_initialized() and _ray_session() == self._session):
            raise ClusterError("Ray was shut down under this engine; make a new one")
        self._node.check()

    def close(self) -> None:
        if self not in RayConnection._owners:
            return
        RayConnection._owners.remove(self)
        if not RayConnection._owners and ray.is_initialized():
            ray.shutdown()


def _ray_session() -> tuple[str, str]:
    """Node and job of this driver: at least one of them changes with `ray.shutdown` and `ray.init`."""
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


def _bytes_to_share(config: ExecutionConfig) -> int:
    """Bytes for the weights that the workers share, and for the slots that a new worker takes over. The system hands
    them out as they are used. Where both do not fit: for the slots; where these do not, 0."""
    shared_memory = Path("/dev/shm")
    if config.group.max_actors == 1 or not shared_memory.is_dir():
        return 0
    free = shutil.disk_usage(shared_memory).free - LOCAL_STORE_BYTES
    spec = ModelSpec.read(config)
    wanted = int((spec.weight_bytes + spec.slots_bytes) / STORE_SHARE), spec.slots_bytes
    return next((amount for amount in wanted if amount < free), 0)


def ray_address() -> str:
    return os.environ.get("RAY_ADDRESS") or LOCAL_RAY


def connect_to_ray(
    address: str,
    *,
    num_cpus: int,
    object_store_memory: int = LOCAL_STORE_BYTES,
    env_vars: Mapping[str, str] | None = None,
) -> str | None:
    """Connect to the Ray at `address`, or start one on this machine if that is `LOCAL_RAY`: on loopback addresses, with
    this process's interpreter, and with at least `num_cpus` and `object_store_memory` (bytes). All processes that it
    starts see `env_vars`. The program's handler of SIGTERM stays. Returns the folder of this Ray's session on this
    node, which has its logs; None through a client's address (ray://). Raises ClusterError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == LOCAL_RAY:
        # Processes of a local Ray inherit these variables.
        os.environ.update(env_vars or {})
        os.environ.setdefault(KILL_TIMEOUT_VARIABLE, KILL_TIMEOUT_MS)
        options |= {
            "num_cpus": max(os.cpu_count() or 1, num_cpus),
            "object_store_memory": object_store_memory,
            "include_dashboard": False,
        }
    else:
        _check_answers(address)
        _check_auth_mode(address)
        if env_vars:
            options["runtime_env"] = {"env_vars": dict(env_vars)}
    try:
        if address == LOCAL_RAY:
            make_token()
        with _own_sigterm(), _by_itself() if address == LOCAL_RAY else _few_attempts():
            context = ray.init(address=address, **options)
    except Exception as error:  # Ray also raises plain exceptions, as for a node that is not there in time
        raise ClusterError(_explain(address, error)) from error
    session: str | None = getattr(context, "address_info", {}).get("session_dir")
    return session


def _check_answers(address: str) -> None:
    """Raises ClusterError if nothing listens at a host and port; Ray itself tries for more than a minute."""
    if not is_host_and_port(address):
        return
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_TIMEOUT_S).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ClusterError(_explain(address, error)) from error
            time.sleep(0.2)


def _check_auth_mode(address: str) -> None:
    """Raises ClusterError if this process sends a token to a cluster without them, or none to one that requires it."""
    wants, shows = wants_token(address), os.environ.get(AUTH_MODE, "").lower() == "token"
    if wants is True and not shows:
        raise ClusterError(f"Ray at {address!r} requires a token, and this process has none; {TOKEN_ADVICE}")
    if wants is False and shows:
        raise ClusterError(
            f"Ray at {address!r} uses no tokens, so its processes cannot answer this one, which runs with "
            "RAY_AUTH_MODE=token (a local Ray sets that too); unset it, or start that cluster with RAY_AUTH_MODE=token"
        )


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the program's handler of SIGTERM, if it has one: Ray sets its own, which exits with other statuses."""
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    except SystemExit:
        signal.signal(signal.SIGTERM, handler)
        signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextmanager
def _by_itself() -> Iterator[None]:
    """Have the Ray that starts meanwhile be no part of a cluster: see `LOCAL_CONSTANTS` and `OTHERS_ENVIRONMENTS`."""
    constants = {name: getattr(ray_constants, name) for name in LOCAL_CONSTANTS}
    environment = {name: os.environ.pop(name) for name in OTHERS_ENVIRONMENTS if name in os.environ}
    vars(ray_constants).update(LOCAL_CONSTANTS)
    try:
        yield
    finally:
        vars(ray_constants).update(constants)
        os.environ.update(environment)


@contextmanager
def _few_attempts() -> Iterator[None]:
    """Have Ray give up after 2 attempts to connect, instead of 20, which take minutes where nothing answers."""
    is_set = ATTEMPTS_VARIABLE in os.environ
    os.environ.setdefault(ATTEMPTS_VARIABLE, "2")
    try:
        yield
    finally:
        if not is_set:
            del os.environ[ATTEMPTS_VARIABLE]


def _explain(address: str, error: Exception) -> str:
    if address == LOCAL_RAY:
        file = error.filename if isinstance(error, OSError) else None
        # Ray says in words that its folder makes paths of sockets too long.
        of_folder = "AF_UNIX" in str(error) or file not in (None, sys.executable)
        advice = "; set RAY_TMPDIR to a folder that can be written and has a short path" * of_folder
        return f"cannot start Ray on this machine ({error}){advice}"
    # Ray does not chain the exceptions of its attempts. The cause has the text of the last exception.
    if isinstance(error, AuthenticationError) or AuthenticationError.__name__ in str(error.__cause__):
        return f"Ray at {address!r} does not accept the token of this process; {TOKEN_ADVICE}"
    return (
        f"cannot connect to Ray at {address!r} ({error}); start it, correct RAY_ADDRESS, or unset it "
        "for a Ray of this process"
    )
