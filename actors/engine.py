"""RayEngine: the public face of a decode group that runs on Ray actors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import ray
from ray.exceptions import RayActorError, RayTaskError

import lopa_ray.decoders  # noqa: F401 - registers the decoders
from actors.branch_worker import RunnerFactory, default_runner
from actors.connection import Connection
from actors.master import Master
from lopa_ray.cache import SlotChecksum
from lopa_ray.config import Config
from lopa_ray.engine import Engine, EngineEvent
from lopa_ray.errors import ClusterError, LopaError, WorkerLostError
from lopa_ray.session import DecodeSession, Vocabulary
from lopa_ray.tokenizer import Tokenizer

MAX_STREAMS = 1000
"""Streaming calls that a master serves at once."""


class RayEngine(Engine):
    """Master and branch workers of one group, as `Engine`."""

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        tokenizer: Tokenizer | None,
        master: Any,
        connection: Connection,
    ) -> None:
        """Over a master actor that is started already; see `from_config`."""
        super().__init__(config, vocabulary, tokenizer)
        self._actor = master
        self._connection = connection

    @classmethod
    def from_config(
        cls, config: Config, *, address: str | None = None, runner_factory: RunnerFactory = default_runner
    ) -> Self:
        """Start a group on the Ray at `address`, RAY_ADDRESS, or a local one that ends with its engines.

        Raises CapacityError, CheckpointError, ClusterError, SettingsError, WorkerLostError.
        `runner_factory` makes each worker's runner; tests inject faults through it.
        """
        tokenizer = Tokenizer.from_pretrained(config.model.folder)
        connection = Connection(config, address)
        master = None
        try:
            # The master computes next to nothing; it must not take a CPU from its workers.
            remote: Any = ray.remote(Master).options(num_cpus=0, max_restarts=0, max_concurrency=MAX_STREAMS)
            master = remote.remote(config, runner_factory)
            vocabulary = _unwrapped(lambda: ray.get(master.start.remote()))
        except BaseException:
            _end(master, connection)
            raise
        return cls(config, vocabulary, tokenizer, master, connection)

    @property
    def _master(self) -> Any:
        if self._actor is None:
            raise ClusterError("this engine is closed; make a new one")
        if not ray.is_initialized():
            raise ClusterError("Ray was shut down under this engine; make a new one")
        return self._actor

    def events(self, sessions: Sequence[DecodeSession]) -> Iterator[EngineEvent]:
        """See `Engine.events`. Raises WorkerLostError if the master is lost, ClusterError when closed."""
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
        """End the group, and Ray if it was started for engines and this is the last. Then do nothing."""
        master, self._actor = self._actor, None
        _end(master, self._connection)


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


def _end(master: Any, connection: Connection) -> None:
    """Killing the master takes its workers along: they are its children."""
    try:
        if master is not None and ray.is_initialized():
            ray.kill(master)
    finally:
        connection.close()
