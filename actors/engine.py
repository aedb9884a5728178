"""RayEngine: the public face of a decode group that runs on Ray actors."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import ray
from ray.exceptions import RayActorError, RayTaskError

import lopa_ray.decoders  # noqa: F401 - registers the decoders
from actors.branch_worker import RunnerFactory, default_runner
from actors.master import Master
from lopa_ray.cache import SlotChecksum
from lopa_ray.config import Config
from lopa_ray.engine import Engine, EngineEvent
from lopa_ray.errors import LopaError, WorkerLostError
from lopa_ray.session import DecodeSession, Vocabulary
from lopa_ray.tokenizer import Tokenizer

LOCAL_STORE_BYTES = 200 * 2**20
"""Object store of a Ray that is started just for this engine: K/V goes past it."""

MAX_STREAMS = 1000
"""Streaming calls that a master serves at once."""


def connect(config: Config, address: str | None = None) -> bool:
    """Connect to Ray unless that is done already; returns whether a local Ray was started for it.

    `address` (or RAY_ADDRESS) names a cluster; without either a local Ray is started, with as
    many logical CPUs as the group needs.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address != "local":
        ray.init(address=address, **quiet)
        return False
    cpus = max(os.cpu_count() or 1, math.ceil(config.group.num_workers * config.group.num_cpus))
    ray.init(
        address="local",
        num_cpus=cpus,
        object_store_memory=LOCAL_STORE_BYTES,
        include_dashboard=False,
        **quiet,
    )
    return True


class RayEngine(Engine):
    """Master and branch workers of one group, as `Engine`."""

    def __init__(
        self, config: Config, master: Any, vocabulary: Vocabulary, tokenizer: Tokenizer | None, owns_ray: bool
    ) -> None:
        """Over a master actor that is started already; see `from_config`."""
        super().__init__(config, vocabulary, tokenizer)
        self._master = master
        self._owns_ray = owns_ray

    @classmethod
    def from_config(
        cls, config: Config, *, address: str | None = None, runner_factory: RunnerFactory = default_runner
    ) -> Self:
        """Start a group. Raises CapacityError, CheckpointError, SettingsError, WorkerLostError.

        `runner_factory` makes each worker's runner; tests inject faults through it.
        """
        tokenizer = Tokenizer.from_pretrained(config.model.folder)
        owns_ray = connect(config, address)
        master = None
        try:
            # The master computes next to nothing; it must not take a CPU from its workers.
            remote: Any = ray.remote(Master).options(num_cpus=0, max_restarts=0, max_concurrency=MAX_STREAMS)
            master = remote.remote(config, runner_factory)
            vocabulary = _unwrapped(lambda: ray.get(master.start.remote()))
        except BaseException:
            _end(master, owns_ray)
            raise
        return cls(config, master, vocabulary, tokenizer, owns_ray)

    def events(self, sessions: Sequence[DecodeSession]) -> Iterator[EngineEvent]:
        """See `Engine.events`. Raises WorkerLostError if the master is lost."""
        stream = self._master.stream.options(num_returns="streaming").remote(list(sessions))
        finished = False
        try:
            for ref in stream:
                yield _unwrapped(lambda ref=ref: ray.get(ref))
            finished = True
        finally:
            if not finished and ray.is_initialized():
                ray.cancel(stream)

    def checksums(self) -> list[list[SlotChecksum]]:
        """Per worker, per slot; what must agree while the group is idle."""
        checksums: list[list[SlotChecksum]] = _unwrapped(lambda: ray.get(self._master.checksums.remote()))
        return checksums

    def close(self) -> None:
        """End the group, and Ray if it was started for this engine. Further calls do nothing."""
        master, self._master = self._master, None
        _end(master, self._owns_ray)
        self._owns_ray = False


def _unwrapped(call: Any) -> Any:
    """The call's result; errors of ours come without Ray's wrapping."""
    try:
        return call()
    except RayTaskError as error:
        if isinstance(error.cause, LopaError):
            raise error.cause from None
        raise
    except RayActorError as error:
        raise WorkerLostError(f"the group's master died: {error}") from None


def _end(master: Any, owns_ray: bool) -> None:
    """Killing the master takes its workers along: they are its children."""
    if not ray.is_initialized():
        return
    if master is not None:
        ray.kill(master)
    if owns_ray:
        ray.shutdown()
