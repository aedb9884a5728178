"""JobOutput: the results of a job, written chunk by chunk so that a killed job can continue.

Beside OUTPUT lie OUTPUT.job.json, which says what it is made of, and, until all is done,
OUTPUT.parts with the results of each chunk. Every file has its name only once it is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.jobs.storage import resolve_url, storage_errors, write_atomically
from lopa_ray.errors import SettingsError

PART = re.compile(r"part-(\d{6,})\.jsonl$")

PARTS_PER_FETCH = 32
"""Parts that are fetched together: object stores answer many at a time."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything that determines the results. A resumed job must have the same."""

    input_sha256: str
    lines: int
    raw: bool
    model: dict[str, Any]
    decode: dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobResult:
    """A finished output."""

    lines: int
    failed: int


class JobOutput:
    """The files of one job's output."""

    def __init__(self, url: str) -> None:
        """Raises SettingsError if nothing can be written there."""
        self._url = url
        with storage_errors("--output", url):
            self._file_system, self._path = resolve_url(url)
        self._parts_path = f"{self._path}.parts"
        self._state_path = f"{self._path}.job.json"
        self.chunk_size = 0
        self.chunk_files: dict[int, str] = {}
        """The files of the chunks that need no more work."""

    def start_or_resume(self, spec: JobSpec, chunk_size: int) -> JobResult | None:
        """Find what a job with this spec has written here; its result, if it has finished.

        `chunk_size` counts for a job that starts anew. Raises SettingsError if another job's files lie
        here, or if OUTPUT.job.json cannot be read.
        """
        with storage_errors("--output", self._url):
            self._file_system.invalidate_cache()
            state = self._read_state()
            if state is None:
                if self._file_system.exists(self._path):
                    raise SettingsError(
                        f"--output: {self._url} exists, and no job of this kind wrote it; choose another name"
                    )
                self._file_system.makedirs(self._parts_path, exist_ok=True)
                state = {"spec": asdict(spec), "chunk_size": chunk_size, "result": None}
                self._write_state(state)
            self._require_same_spec(state["spec"], spec)
            self.chunk_size = state["chunk_size"]
            if state["result"] is not None and self._file_system.exists(self._path):
                return JobResult(**state["result"])
            self._file_system.makedirs(self._parts_path, exist_ok=True)
            self.chunk_files = {
                int(match[1]): name for name in self._list_parts() if (match := PART.search(name))
            }
        return None

    def _list_parts(self) -> list[str]:
        try:
            names: list[str] = self._file_system.ls(self._parts_path, detail=False)
        except FileNotFoundError:  # an object store has no empty folders
            return []
        return names

    def _read_state(self) -> dict[str, Any] | None:
        if not self._file_system.exists(self._state_path):
            return None
        try:
            state = json.loads(self._file_system.cat_file(self._state_path))
        except ValueError:
            state = None
        if not _is_state(state):
            raise SettingsError(
                f"--output: {self._url}.job.json is damaged, or another version of lopa-ray wrote it; choose another "
                f"--output, or remove {self._url}.job.json, .parts and the file itself to start again"
            )
        valid: dict[str, Any] = state
        return valid

    def _write_state(self, state: dict[str, Any]) -> None:
        write_atomically(self._file_system, self._state_path, iter([json.dumps(state, indent=1).encode()]))

    def _require_same_spec(self, before: dict[str, Any], spec: JobSpec) -> None:
        now = json.loads(json.dumps(asdict(spec)))
        changed = [name for name in now if before.get(name) != now[name]]
        if not changed:
            return
        what = "input" if changed[0] in ("input_sha256", "lines") else changed[0]
        raise SettingsError(
            f"--output: {self._url} was begun with another {what} ({_difference(before, now, changed[0])}); "
            f"restore that to continue, choose another --output, or remove {self._url}.job.json, .parts and "
            "the file itself to start again"
        )

    def write_chunk(self, index: int, rows: Sequence[str]) -> None:
        """Write a chunk's results. Raises SettingsError."""
        path = f"{self._parts_path}/part-{index:06}.jsonl"
        with storage_errors("--output", self._url):
            write_atomically(self._file_system, path, (f"{row}\n".encode() for row in rows))
        self.chunk_files[index] = path

    def merge_parts(self, lines: int) -> JobResult:
        """Join all parts, in order, and remove them. Raises SettingsError if a part is damaged."""
        failed = 0

        def checked_parts() -> Iterator[bytes]:
            nonlocal failed
            for index, content in self._read_parts():
                try:
                    rows = [json.loads(line) for line in content.splitlines()]
                except ValueError:
                    rows = []
                expected = min(self.chunk_size, lines - index * self.chunk_size)
                if len(rows) != expected:
                    self._file_system.rm_file(self.chunk_files[index])
                    raise SettingsError(
                        f"--output: {self.chunk_files[index]} has {len(rows)} of its {expected} results, so it was "
                        "removed; submit the job again to decode them again"
                    )
                failed += sum("error" in row for row in rows)
                yield content

        with storage_errors("--output", self._url):
            write_atomically(self._file_system, self._path, checked_parts())
            state = self._read_state() or {}
            self._write_state({**state, "result": asdict(JobResult(lines, failed))})
            self._file_system.rm(self._parts_path, recursive=True)
        return JobResult(lines, failed)

    def _read_parts(self) -> Iterator[tuple[int, bytes]]:
        order = sorted(self.chunk_files)
        for first in range(0, len(order), PARTS_PER_FETCH):
            indices = order[first : first + PARTS_PER_FETCH]
            # A list is fetched concurrently if the file system supports it. The keys are in the file system's spelling.
            contents = self._file_system.cat([self.chunk_files[index] for index in indices])
            yield from zip(indices, (contents[self.chunk_files[index]] for index in indices), strict=True)


def _is_state(value: Any) -> bool:
    """Whether a value has the keys that `JobOutput` writes to OUTPUT.job.json."""
    if not isinstance(value, dict) or not {"spec", "chunk_size", "result"} <= value.keys():
        return False
    result = value["result"]
    is_result = result is None or (isinstance(result, dict) and result.keys() == {"lines", "failed"})
    return isinstance(value["spec"], dict) and isinstance(value["chunk_size"], int) and is_result


def _difference(before: dict[str, Any], now: dict[str, Any], name: str) -> str:
    old, new = before.get(name), now[name]
    if isinstance(old, dict) and isinstance(new, dict):
        key = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
        return f"{key}: {old.get(key)!r}, now {new.get(key)!r}"
    return f"{name}: {str(old)[:12]}, now {str(new)[:12]}"
