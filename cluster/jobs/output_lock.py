"""`output_lock`: one job at a time writes to OUTPUT. The file OUTPUT.job.lock names the job that holds the lock.

On a local file system the operating system locks that file. On other stores the job rewrites it every few seconds, and
a file that does not change was left behind."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout
from fsspec.implementations.local import LocalFileSystem

from cluster.batch.storage import resolve_url, storage_errors
from lopa_ray.errors import SettingsError

RENEWAL_S = 10.0  # seconds after which a holder writes its file anew, where there are no locks


@contextmanager
def output_lock(url: str, wait: Callable[[float], object]) -> Iterator[Callable[[], None]]:
    """Hold the lock of an output. Yields a function that raises SettingsError if another job has taken it meanwhile.
    Raises SettingsError, which names the holder, if another job has the lock. Where there are no locks and a file lies
    there, `wait` is called with 30 s, to see whether it changes."""
    with storage_errors("--output", url):
        file_system, path = resolve_url(url)
    path = f"{path}.job.lock"
    if isinstance(file_system, LocalFileSystem):
        with _locked_file(url, Path(path)):
            yield lambda: None
        return
    lease = Lease(url, file_system, path)
    lease.take(wait)
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(RENEWAL_S):
            # A store that does not answer now may do so later; otherwise writing the chunks says why it does not.
            with suppress(OSError):
                lease.renew()

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield lease.check
    finally:
        ended.set()
        thread.join()
        lease.release()


def _holder() -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "process": os.getpid(), "since": now}


def _in_use(url: str, content: bytes) -> SettingsError:
    try:
        holder = json.loads(content)
        who = f"process {holder['process']} on {holder['host']}, since {holder['since']}"
    except (ValueError, TypeError, KeyError):
        who = "a process that has not written its name yet"
    hint = "wait until it ends, end it, or choose another --output"
    return SettingsError(f"--output: another job writes to {url}: {who}; {hint}")


@contextmanager
def _locked_file(url: str, path: Path) -> Iterator[None]:
    lock = FileLock(path, timeout=0.5)  # a holder may be about to remove it
    with storage_errors("--output", url):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise _in_use(url, path.read_bytes()) from None
    try:
        path.write_text(json.dumps(_holder()))
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


class Lease:
    def __init__(self, url: str, file_system: Any, path: str) -> None:
        self._url, self._file_system, self._path = url, file_system, path
        self._holder = {**_holder(), "id": secrets.token_hex(8)}
        self._renewals = 0
        self._taken_by: bytes | None = None  # the file of a job that has taken the lease

    def take(self, wait: Callable[[float], object]) -> None:
        """Raises SettingsError if the file that is there changes."""
        with storage_errors("--output", self._url):
            found = self._read()
            if found is not None:
                wait(3 * RENEWAL_S)
                later = self._read()
                if later is not None and later != found:
                    raise _in_use(self._url, later)
            self._write()

    def renew(self) -> None:
        found = self._read()
        if found is not None and json.loads(found)["id"] != self._holder["id"]:
            self._taken_by = found
        elif self._taken_by is None:
            self._write()

    def check(self) -> None:
        """Raises SettingsError if another job has taken the lease."""
        if self._taken_by is not None:
            raise _in_use(self._url, self._taken_by)

    def release(self) -> None:
        if self._taken_by is None:
            with suppress(OSError):  # it is found unchanged then, as after a kill
                self._file_system.rm_file(self._path)

    def _read(self) -> bytes | None:
        self._file_system.invalidate_cache()
        with suppress(FileNotFoundError):
            return cast(bytes, self._file_system.cat_file(self._path))
        return None

    def _write(self) -> None:
        self._renewals += 1
        content = json.dumps({**self._holder, "renewals": self._renewals})
        self._file_system.pipe_file(self._path, content.encode())
