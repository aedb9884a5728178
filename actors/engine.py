"""RayEngine: the public face of a decode group that runs on Ray actors."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Self

import ray

from actors.branch_worker import RunnerFactory, WorkerInfo, default_runner
from actors.client_journals import RETRY_PAUSE_S, ClientJournals, not_replaced
from actors.master import MasterStatus, start_master, unwrapped
from actors.placement import Reservation
from actors.ray_connection import Connection
from lopa_ray.config.config import Config
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine
from lopa_ray.errors import ClusterError, WorkerLostError
from lopa_ray.execution.kv_cache import SlotChecksum
from lopa_ray.execution.model_loader import load_model_config
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.tokenizer import Tokenizer


class RayEngine(Engine):
    """Master and branch workers of one group, as `Engine`."""

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        tokenizer: Tokenizer | None,
        master: Any,
        connection: Connection,
        reservation: Reservation,
        runner_factory: RunnerFactory,
    ) -> None:
        """Over a master actor that is started already; see `from_config`."""
        super().__init__(config, vocabulary, tokenizer)
        self._actor = master
        self._connection = connection
        self._reservation = reservation
        self._runner_factory = runner_factory
        self._resized: int | None = None
        """How many workers were asked for last, after the start."""
        self._replacing = threading.Lock()

    @classmethod
    def from_config(
        cls, config: Config, *, address: str | None = None, runner_factory: RunnerFactory = default_runner
    ) -> Self:
        """Start a group on the Ray at `address`, RAY_ADDRESS, or a local one that ends with its engines.

        Raises CapacityError, CheckpointError, ClusterError, SettingsError, WorkerLostError.
        `runner_factory` makes each worker's runner; tests inject faults through it.
        """
        tokenizer = Tokenizer.from_pretrained(config.model.folder)
        # Refused before anything is started.
        load_model_config(config).shard(config.group.tensor_parallel_size)
        connection = Connection(config, address)
        master = reservation = None
        try:
            reservation = Reservation(config)
            master = start_master(config, runner_factory, reservation.places)
            with unwrapped():
                info: WorkerInfo = ray.get(master.start.remote())
        except BaseException:
            _end(master, reservation, connection)
            raise
        return cls(config, info.vocabulary, tokenizer, master, connection, reservation, runner_factory)

    @property
    def _master(self) -> Any:
        if self._actor is None:
            raise ClusterError("this engine is closed; make a new one")
        if not ray.is_initialized():
            raise ClusterError("Ray was shut down under this engine; make a new one")
        return self._actor

    def events(self, sessions: Sequence[DecodeSession]) -> Iterator[RequestEvent]:
        """See `Engine.events`. Raises ClusterError when closed.

        When the master or all workers are lost, requests go on on a new group; those for which that
        fails end with WorkerLostError.
        """
        journals = ClientJournals()
        for index, session in enumerate(sessions):
            journals.begin(index, session)
        requests = dict(enumerate(sessions))
        while journals:
            master = self._master
            try:
                yield from self._stream(master, journals, requests)
            except WorkerLostError as loss:
                try:
                    if journals.stuck:
                        raise
                    self._replace(master, loss)
                except WorkerLostError as error:
                    yield from [RequestFailure(index, error) for index in journals]
                    return
                requests = journals.resumed()

    def _stream(
        self, master: Any, journals: ClientJournals, requests: dict[int, DecodeSession]
    ) -> Iterator[RequestEvent]:
        """Raises WorkerLostError if the group is lost."""
        stream = master.stream.options(num_returns="streaming").remote(uuid.uuid4().hex, requests)
        finished = False
        try:
            for ref in stream:
                with unwrapped():
                    batch = ray.get(ref)
                yield from journals.take(batch)
            finished = True
        finally:
            if not finished and ray.is_initialized():
                ray.cancel(stream)

    def _replace(self, lost: Any, loss: WorkerLostError) -> None:
        """Start another group, unless somebody has done so.

        Raises WorkerLostError if that fails, ClusterError when closed.
        """
        within = self.config.group.resume_timeout_s
        with self._replacing:
            if self._master is not lost:
                return
            if not within:
                raise loss
            ray.kill(lost)
            deadline = time.monotonic() + within
            while self._actor is lost:
                try:
                    another = self._start_another(max(0.0, deadline - time.monotonic()))
                except WorkerLostError as error:
                    if time.monotonic() + RETRY_PAUSE_S > deadline:
                        raise not_replaced(loss, error, within) from None
                    time.sleep(RETRY_PAUSE_S)
                except Exception as error:
                    raise not_replaced(loss, error, within) from None
                else:
                    if self._actor is lost:
                        self._actor = another
                    else:
                        ray.kill(another)  # the engine was closed meanwhile

    def _start_another(self, within: float) -> Any:
        """Another master in the same places, of the size that was asked for last."""
        master = start_master(self.config, self._runner_factory, self._reservation.places)
        try:
            with unwrapped():
                ray.get(master.start.remote(), timeout=within)
                if self._resized is not None:
                    ray.get(master.resize.remote(self._resized))
        except BaseException:
            ray.kill(master)
            raise
        return master

    def resize(self, num_workers: int) -> None:
        """Have that many workers, while requests decode; see `Master.resize`. Raises SettingsError."""
        with unwrapped():
            ray.get(self._master.resize.remote(num_workers))
        self._resized = num_workers

    def status(self) -> MasterStatus:
        """How the group is doing. Raises WorkerLostError if the master is lost."""
        with unwrapped():
            status: MasterStatus = ray.get(self._master.status.remote())
        return status

    def checksums(self) -> list[list[SlotChecksum]]:
        """Per worker, per slot; what must agree while the group is idle."""
        with unwrapped():
            checksums: list[list[SlotChecksum]] = ray.get(self._master.checksums.remote())
        return checksums

    def close(self) -> None:
        """End the group, and Ray if it was started for engines and this is the last. Then do nothing."""
        master, self._actor = self._actor, None
        _end(master, self._reservation, self._connection)


def _end(master: Any, reservation: Reservation | None, connection: Connection) -> None:
    """Killing the master takes its workers along: they are its children."""
    try:
        if master is not None and ray.is_initialized():
            ray.kill(master)
        if reservation is not None:
            reservation.release()
    finally:
        connection.close()
