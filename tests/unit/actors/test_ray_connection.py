"""The connection to Ray that engines share: which of them end it, and what one has when Ray was shut down."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import ray_constants

import actors.connection.ray_connection
import actors.connection.ray_node
from actors.client.event_loop_thread import EventLoopThread
from actors.connection.ray_connection import ATTEMPTS_VARIABLE, LOCAL_RAY, LOCAL_STORE_BYTES, RayConnection
from actors.engine import RayEngine
from actors.workers.node_weights import STORE_SHARE
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import ClusterError, SettingsError
from lopa_ray.execution.model_spec import ModelSpec
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

NOTHING = "127.0.0.1:9"
"""Where nothing listens."""


class FakeRay:
    """Stands in for the module: a node and a job for each `init`, and one raylet for all."""

    def __init__(self) -> None:
        self.starts = 0
        self.raylet = socket.create_server(("127.0.0.1", 0))
        self.address: str | None = None

    def init(self, address: str, **options: Any) -> None:
        self.starts += 1
        self.address = address
        self.options = options

    def shutdown(self) -> None:
        self.address = None

    def is_initialized(self) -> bool:
        return self.address is not None

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: f"node {self.starts}", get_job_id=lambda: "01000000")

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 8.0}

    def nodes(self) -> list[dict[str, Any]]:
        address, port = self.raylet.getsockname()
        node = {"NodeID": f"node {self.starts}", "NodeManagerAddress": address, "NodeManagerPort": port}
        other = {"NodeID": "another", "NodeManagerAddress": address, "NodeManagerPort": 0}
        return [{**fields, "Alive": True, "Resources": {"CPU": 8.0}} for fields in (other, node)]


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setenv("HOME", str(tmp_path))  # a token is made there
    for module in (actors.connection.ray_connection, actors.connection.ray_node):
        monkeypatch.setattr(module, "ray", fake)
    monkeypatch.setattr(RayConnection, "_owners", set())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield fake
    fake.raylet.close()


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of what takes connections and closes them, so that it does not say whether it wants a token."""
    with TCPServer(("127.0.0.1", 0), BaseRequestHandler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        host, port = server.server_address
        yield f"{host!s}:{port}"
        server.shutdown()
        thread.join()


def has_ended(connection: RayConnection) -> bool:
    try:
        connection.check()
    except ClusterError:
        return True
    return False


def test_the_last_of_several_ends_a_ray_of_their_own(ray: FakeRay) -> None:
    first, second = RayConnection(tiny_config()), RayConnection(tiny_config())
    assert (ray.starts, ray.address) == (1, LOCAL_RAY)
    first.close()
    first.close()
    assert not has_ended(second)
    second.close()
    assert not ray.is_initialized() and has_ended(second)


@pytest.mark.parametrize(
    ("workers", "free", "expected"),
    [
        (2, 2**40, lambda weights, slots: int((weights + slots) / STORE_SHARE)),
        (2, LOCAL_STORE_BYTES + 2**27, lambda weights, slots: slots),
        (2, 0, lambda weights, slots: 0),
        (1, 2**40, lambda weights, slots: 0),
    ],
)
def test_a_local_object_store_has_room_for_weights_and_for_the_slots_of_a_new_worker(
    ray: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    free: int,
    expected: Callable[[int, int], int],
) -> None:
    monkeypatch.setattr(
        actors.connection.ray_connection.shutil, "disk_usage", lambda _: SimpleNamespace(free=free)
    )
    weights, positions = 2**33, 4 * 256
    monkeypatch.setattr(ModelSpec, "weight_bytes", weights)
    config = tiny_config(group={"num_workers": workers}, model={"max_num_seqs": 4})
    cache = LocalEngine.from_config(config).runner.cache
    slots = cache.data[:, :, :, :, :256].numel() * cache.data.element_size()
    assert slots == positions * cache.data[0, :, :, :, 0].numel() * 4
    RayConnection(config)
    assert ray.options["object_store_memory"] == LOCAL_STORE_BYTES + expected(weights, slots)


@pytest.mark.parametrize("connected_before", [False, True])
def test_a_cluster_outlives_them(ray: FakeRay, cluster: str, connected_before: bool) -> None:
    if connected_before:
        ray.init(cluster)
    RayConnection(tiny_config(), cluster).close()
    assert ray.address == cluster


def test_a_cluster_that_is_not_there_is_said_at_once(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors.connection.ray_connection, "ANSWER_TIMEOUT_S", 0.1)
    with pytest.raises(ClusterError, match=r"cannot connect to Ray at '127.0.0.1:9' .* correct RAY_ADDRESS"):
        RayConnection(tiny_config(), NOTHING)
    assert ray.starts == 0


def test_a_ray_that_came_after_a_shutdown_is_another_one(ray: FakeRay) -> None:
    before = RayConnection(tiny_config())
    ray.shutdown()
    assert has_ended(before)
    after = RayConnection(tiny_config())
    assert has_ended(before) and not has_ended(after)
    before.close()
    assert ray.is_initialized()
    after.close()
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("mode", "wanted", "refusal"),
    [
        (None, True, "requires a token, and this process has none; have the token of the cluster's head"),
        ("disabled", True, "requires a token"),
        ("token", False, "uses no tokens"),
        ("token", True, None),
        (None, False, None),
        ("token", None, None),
    ],
)
def test_a_cluster_that_would_refuse_this_process_is_not_connected_to(
    ray: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    cluster: str,
    mode: str | None,
    wanted: bool | None,
    refusal: str | None,
) -> None:
    monkeypatch.setattr(actors.connection.ray_connection, "wants_token", lambda _: wanted)
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    else:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    if refusal is None:
        RayConnection(tiny_config(), cluster)
        assert ray.address == cluster
    else:
        with pytest.raises(ClusterError, match=refusal):
            RayConnection(tiny_config(), cluster)
        assert ray.starts == 0


def test_a_refused_token_is_a_cluster_error(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    def init(address: str, **options: Any) -> None:
        assert os.environ[ATTEMPTS_VARIABLE] == "2"
        # As Ray reports it: the exception of the last attempt is text.
        raise ConnectionError from RuntimeError(
            "Last connection error: ray.exceptions.AuthenticationError: ..."
        )

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv(ATTEMPTS_VARIABLE, raising=False)
    with pytest.raises(ClusterError, match="does not accept the token of this process"):
        RayConnection(tiny_config(), cluster)
    assert ATTEMPTS_VARIABLE not in os.environ


def test_more_shards_than_heads_are_refused_before_ray_is_started(ray: FakeRay) -> None:
    with pytest.raises(SettingsError, match="got 4 for a model with 4 heads, 2 KV heads"):
        RayEngine.from_config(tiny_config(group={"num_workers": 1, "tensor_parallel_size": 4}))
    assert ray.starts == 0


@pytest.mark.parametrize("local", [True, False])
def test_a_local_ray_has_the_drivers_environment_and_signals(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cluster: str, local: bool
) -> None:
    hooks = {"RAY_RUNTIME_ENV_HOOK": "a.hook", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}
    for name, value in hooks.items():
        monkeypatch.setenv(name, value)
    seen = []

    def init(address: str, **_: Any) -> None:
        FakeRay.init(ray, address)
        seen.append((hooks.keys() & os.environ.keys(), ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV))
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("Ray's own handler"))

    monkeypatch.setattr(ray, "init", init)
    called: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: called.append(number))
    try:
        RayConnection(tiny_config(), None if local else cluster)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [signal.SIGTERM]
    assert seen == [(set(), False) if local else (hooks.keys(), True)]
    assert hooks.items() <= os.environ.items() and ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV


def test_an_engine_says_that_ray_has_ended_on_its_node(ray: FakeRay) -> None:
    local, loop = LocalEngine.from_config(tiny_config()), EventLoopThread()
    ended = ExitStack()
    ended.callback(loop.close)
    with RayEngine(local, loop, RayConnection(tiny_config()), ended) as engine:  # calls nothing of a group
        ray.raylet.close()
        with pytest.raises(ClusterError, match="Ray on this node has ended"):
            engine.generate(PROMPTS[0], SETTINGS["two_phase"])
        with pytest.raises(ClusterError, match="Ray on this node has ended"):
            engine.status()
