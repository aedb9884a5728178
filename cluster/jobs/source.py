"""Source: prompts from a JSONL or Parquet file, a chunk at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import fsspec

from cluster.batch.lines import DECISION_KEYS, OPTION_KEYS, PROMPT_KEYS, ParsedLine, parse_line, parse_record
from cluster.jobs.storage import resolve_url, storage_errors
from lopa_ray.errors import SettingsError
from lopa_ray.extras import install_advice

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

READ_BYTES = 2**20

READ_ROWS = 1024


@dataclass(frozen=True, slots=True)
class InputSummary:
    """What a file holds."""

    sha256: str
    """SHA-256 of its bytes as they are stored, in hexadecimal digits."""
    lines: int
    """Prompts; blank lines do not count."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompts that are decoded, and whose results are kept, together."""

    index: int
    lines: tuple[ParsedLine, ...]


class Source:
    """A file of prompts: Parquet if its name ends so, else JSONL, compressed if its name says so."""

    def __init__(self, url: str) -> None:
        """Raises SettingsError if it is not there or cannot be read."""
        self._url = url
        with storage_errors("--input", url):
            self._file_system, self._path = resolve_url(url)
        self._is_parquet = url.endswith(".parquet")

    def summarize(self) -> InputSummary:
        """Read it once. Raises SettingsError."""
        digest = hashlib.sha256()
        with storage_errors("--input", self._url):
            with self._file_system.open(self._path, "rb") as file:
                while block := file.read(READ_BYTES):
                    digest.update(block)
            lines = self._count_rows() if self._is_parquet else sum(1 for _ in self._numbered_lines())
        if not lines:
            raise SettingsError(f"--input: {self._url} has no prompts")
        return InputSummary(digest.hexdigest(), lines)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """All prompts in order, so many at a time. A bad line is a `FailedLine` in its place."""
        with storage_errors("--input", self._url):
            lines = self._read_parquet() if self._is_parquet else self._read_jsonl()
            index = 0
            while chunk := tuple(islice(lines, size)):
                yield Chunk(index, chunk)
                index += 1

    def _numbered_lines(self) -> Iterator[tuple[int, bytes]]:
        with fsspec.core.OpenFile(
            self._file_system,
            self._path,
            compression=fsspec.core.get_compression(self._path, "infer"),
        ) as file:
            for number, line in enumerate(file, 1):
                content = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
                if content.strip():
                    yield number, content

    def _read_jsonl(self) -> Iterator[ParsedLine]:
        for number, line in self._numbered_lines():
            yield parse_line(number, line)

    def _count_rows(self) -> int:
        with self._file_system.open(self._path, "rb") as file:
            parquet = _open_parquet(file)
            known = {*PROMPT_KEYS, *DECISION_KEYS, "id", *OPTION_KEYS}
            unknown = [name for name in parquet.schema_arrow.names if name not in known]
            if unknown:
                raise SettingsError(
                    f"--input: {self._url} has a column {unknown[0]!r}; allowed: {', '.join(sorted(known))}; "
                    "write a file with these columns only"
                )
            rows: int = parquet.metadata.num_rows
        return rows

    def _read_parquet(self) -> Iterator[ParsedLine]:
        """Rows are numbered from 1, as lines are."""
        number = 0
        with self._file_system.open(self._path, "rb") as file:
            for batch in _open_parquet(file).iter_batches(READ_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield parse_record(number, without_nulls(row))


def _open_parquet(file: Any) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise SettingsError(f"--input: a Parquet file needs pyarrow; {install_advice('jobs')}") from None
    return pyarrow.parquet.ParquetFile(file)


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """A column, or a field of one, that a row does not have is null there."""
    return {key: _without_nulls(value) for key, value in row.items() if value is not None}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return without_nulls(value) if isinstance(value, dict) else value
