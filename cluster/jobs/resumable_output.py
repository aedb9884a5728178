"""JobOutput: the results of a job, written chunk by chunk so that a killed job can continue. Beside OUTPUT lie
OUTPUT.job.json (what it is made of) and, until all is done, OUTPUT.parts. Every file has its name only once it is
whole."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby, zip_longest
from typing import Any, TypeAlias, cast

from cluster.batch.lines import is_failed, line_of
from cluster.batch.storage import (
    DamagedFileError,
    open_compressed,
    resolve_url,
    storage_errors,
    write_atomically,
)
from lopa_ray.errors import SettingsError, short_repr

PART = re.compile(r"part-(\d{6,})\.jsonl$")
PARTS_PER_FETCH = 32  # parts that are fetched together: object stores answer many at a time

JobSpec: TypeAlias = dict[str, Any]
"""Everything that determines the results, as plain values: `input`, and others. A resumed job must have the same."""


@dataclass(frozen=True, slots=True)
class JobResult:
    lines: int
    failed: int


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    failed: bool
    content: bytes  # without the end of the line

    @classmethod
    def read(cls, line: bytes) -> _Row | None:
        try:
            row = json.loads(line)
        except ValueError:
            return None
        number = line_of(row) if isinstance(row, dict) else None
        return None if number is None else cls(number, is_failed(row), line.rstrip())


class JobOutput:
    def __init__(self, url: str, numbers: Sequence[int]) -> None:
        """`numbers`: of the input's lines, each of which has a row. Raises SettingsError if nothing can be written
        there."""
        self._url = url
        with storage_errors("--output", url):
            self._file_system, self._path = resolve_url(url)
        self._parts_path = f"{self._path}.parts"
        self._state_path = f"{self._path}.job.json"
        self._numbers = numbers
        self.chunk_size = 0
        self.chunk_files: dict[int, str] = {}  # the files of the chunks that need no more work
        self.damaged: list[str] = []  # files without some of their rows, which are decoded again

    def start_or_resume(self, spec: JobSpec, chunk_size: int) -> JobResult | None:
        """Find what a job with this spec has written here; its result, if it has finished and all rows are there.
        `chunk_size` counts for a job that starts anew. Raises SettingsError if another job's files lie here, or if
        OUTPUT.job.json or a finished output cannot be read."""
        with storage_errors("--output", self._url):
            self._file_system.invalidate_cache()
            state = self._read_state()
            if state is None:
                if self._file_system.exists(self._path):
                    raise SettingsError(
                        f"--output: {self._url} exists, and no job of this kind wrote it; choose another name"
                    )
                self._file_system.makedirs(self._parts_path, exist_ok=True)
                state = {"spec": spec, "chunk_size": chunk_size, "result": None}
                self._write_state(state)
            changed = _difference(state["spec"], json.loads(json.dumps(spec)))
            if changed is not None:
                raise SettingsError(
                    f"--output: {self._url} was begun with another {changed}; restore that to continue, choose another "
                    f"--output, or remove {self._url}.job.json, .parts and the file itself to start again"
                )
            self.chunk_size = state["chunk_size"]
            finished = state["result"] is not None and self._file_system.exists(self._path)
            if finished and (result := self._finished_result()) is not None:
                return result
            self._file_system.makedirs(self._parts_path, exist_ok=True)
            if finished:
                self.damaged.append(self._path)
                self._split_output()
            names: list[str] = []
            with suppress(FileNotFoundError):  # an object store has no empty folders
                names = self._file_system.ls(self._parts_path, detail=False)
            files = {int(match[1]): name for name in names if (match := PART.search(name))}
            whole = [index for index, rows in self._read_parts(files) if rows is not None]
            self.chunk_files = {index: files[index] for index in whole}
            self.damaged += [name for index, name in files.items() if index not in self.chunk_files]
        return None

    def _finished_result(self) -> JobResult | None:
        failed = 0
        for row, number in zip_longest(self._output_rows(), self._numbers):
            if row is None or row.number != number:
                return None
            failed += row.failed
        return JobResult(len(self._numbers), failed)

    def _split_output(self) -> None:
        """Make the parts again of chunks of a damaged output that have all their rows."""
        firsts = self._numbers[:: self.chunk_size]
        rows = (row for row in self._output_rows() if row is not None)
        for chunks, group in groupby(rows, key=lambda row: bisect_right(firsts, row.number)):
            of_chunk = list(group)
            if [row.number for row in of_chunk] == self._numbers_of(chunks - 1):
                self.write_chunk(chunks - 1, [row.content.decode() for row in of_chunk])

    def _output_rows(self) -> Iterator[_Row | None]:
        """The rows; None for a line that is not a whole row with its end, and where a compressed file was cut."""
        try:
            with open_compressed(self._file_system, self._path) as file:
                for line in file:
                    yield _Row.read(line) if line.endswith(b"\n") else None
        except EOFError:
            yield None
        except DamagedFileError as error:
            message = f"{self._url} is damaged ({error}); remove it to decode all of it again"
            raise SettingsError(f"--output: {message}") from None

    def _numbers_of(self, chunk: int) -> list[int]:
        return list(self._numbers[chunk * self.chunk_size : (chunk + 1) * self.chunk_size])

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
        return cast(dict[str, Any], state)

    def _write_state(self, state: dict[str, Any]) -> None:
        write_atomically(self._file_system, self._state_path, iter([json.dumps(state, indent=1).encode()]))

    def write_chunk(self, index: int, rows: Sequence[str]) -> None:
        path = f"{self._parts_path}/part-{index:06}.jsonl"
        with storage_errors("--output", self._url):
            write_atomically(self._file_system, path, (f"{row}\n".encode() for row in rows))
        self.chunk_files[index] = path

    def merge_parts(self) -> JobResult:
        """Join all parts, in order, and remove them. Raises SettingsError if a part is damaged."""
        failed = 0

        def checked_parts() -> Iterator[bytes]:
            nonlocal failed
            for index, rows in self._read_parts(self.chunk_files):
                if rows is None:
                    self._file_system.rm_file(self.chunk_files[index])
                    raise SettingsError(
                        f"--output: {self.chunk_files[index]} has not its {len(self._numbers_of(index))} results, so "
                        "it was removed; submit the job again to decode them again"
                    )
                failed += sum(row.failed for row in rows)
                yield b"".join(row.content + b"\n" for row in rows)

        with storage_errors("--output", self._url):
            write_atomically(self._file_system, self._path, checked_parts())
            state = self._read_state() or {}
            result = JobResult(len(self._numbers), failed)
            self._write_state({**state, "result": asdict(result)})
            self._file_system.rm(self._parts_path, recursive=True)
        return result

    def _read_parts(self, files: dict[int, str]) -> Iterator[tuple[int, list[_Row] | None]]:
        """Chunks in order with their rows; None for a part that has not all of them, and no others."""
        order = sorted(files)
        for first in range(0, len(order), PARTS_PER_FETCH):
            indices = order[first : first + PARTS_PER_FETCH]
            # A list is fetched concurrently if the file system supports it. The keys are in the file system's spelling.
            contents = self._file_system.cat([files[index] for index in indices])
            for index in indices:
                rows = [row for row in map(_Row.read, contents[files[index]].splitlines()) if row is not None]
                yield index, rows if [row.number for row in rows] == self._numbers_of(index) else None


def _is_state(value: Any) -> bool:
    if not isinstance(value, dict) or not {"spec", "chunk_size", "result"} <= value.keys():
        return False
    result = value["result"]
    is_result = result is None or (isinstance(result, dict) and result.keys() == {"lines", "failed"})
    is_spec = isinstance(value["spec"], dict) and "input" in value["spec"]
    return is_spec and isinstance(value["chunk_size"], int) and is_result


def _difference(before: Any, now: Any, name: str = "") -> str | None:
    """The first difference of two JSON values, in words; None if there is none."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**now, **before}:
            found = _difference(before.get(key), now.get(key), f"{name}.{key}".removeprefix("."))
            if found is not None:
                return found
        return None
    return None if before == now else f"{name} ({short_repr(before)}, now {short_repr(now)})"
