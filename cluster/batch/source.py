"""Source: prompts from a JSONL or Parquet file, a chunk at a time."""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cluster.batch.lines import DECISION_KEYS, OPTION_KEYS, PROMPT_KEYS, ParsedLine, failed_line, parse_line
from cluster.batch.storage import compression_of, open_compressed, resolve_url, storage_errors
from lopa_ray.errors import SettingsError
from lopa_ray.extras import install_advice
from lopa_ray.text_input import BYTE_ORDER_MARK, check_encoding

READ_BYTES = 2**20
READ_ROWS = 1024


@dataclass(frozen=True, slots=True)
class InputSummary:
    sha256: str  # of its bytes as they are stored, in hexadecimal digits
    format: str  # `parquet`, or the compression of JSONL (plain: none)
    numbers: Sequence[int]  # of the lines with prompts; blank lines do not count


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
                while block := file.read(
                    READ_BYTES
                ):  # files of Arrow have no `readinto` for `hashlib.file_digest`
                    digest.update(block)
            numbers = self._number_rows() if self._is_parquet else self._number_lines()
        if not numbers:
            raise SettingsError(f"--input: {self._url} has no prompts")
        kind = "parquet" if self._is_parquet else compression_of(self._path) or "plain"
        return InputSummary(digest.hexdigest(), kind, numbers)

    def lines(self) -> Iterator[ParsedLine]:
        """All prompts in order. A bad line is a `LineResult` with its error. Raises SettingsError."""
        with storage_errors("--input", self._url):
            if self._is_parquet:
                yield from self._read_parquet()
            else:
                with open_compressed(self._file_system, self._path) as file:
                    yield from _parse_lines(file, self._url)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """The same, so many at a time."""
        lines = self.lines()
        index = 0
        while chunk := tuple(islice(lines, size)):
            yield Chunk(index, chunk)
            index += 1

    def _number_lines(self) -> Sequence[int]:
        with open_compressed(self._file_system, self._path) as file:
            return array("q", (number for number, _ in _numbered_lines(file, self._url)))

    def _number_rows(self) -> Sequence[int]:
        with self._file_system.open(self._path, "rb") as file:
            return range(1, self._open_parquet(file).metadata.num_rows + 1)

    def _read_parquet(self) -> Iterator[ParsedLine]:
        number = 0
        with self._file_system.open(self._path, "rb") as file:
            for batch in self._open_parquet(file).iter_batches(READ_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield _parse_row(number, without_nulls(row))

    def _open_parquet(self, file: Any) -> Any:
        try:
            import pyarrow.parquet
        except ImportError:
            raise SettingsError(f"--input: a Parquet file needs pyarrow; {install_advice('jobs')}") from None
        parquet = pyarrow.parquet.ParquetFile(file)
        known = {*PROMPT_KEYS, *DECISION_KEYS, "id", *OPTION_KEYS}
        unknown = [name for name in parquet.schema_arrow.names if name not in known]
        if unknown:
            allowed = f"{', '.join(sorted(known))}; write a file with these columns only"
            raise SettingsError(f"--input: {self._url} has a column {unknown[0]!r}; allowed: {allowed}")
        return parquet


def read_lines(source: str) -> list[ParsedLine]:
    """All lines of a file, of a pipe, or of stdin for "-". Raises SettingsError, and OSError for a pipe."""
    if source == "-":
        return list(_parse_lines(sys.stdin.buffer, "stdin"))
    path = Path(source)
    if path.exists() and not path.is_file():  # nothing can be read there but from the beginning to the end
        with path.open("rb") as pipe:
            return list(_parse_lines(pipe, source))
    return list(Source(source).lines())


def _numbered_lines(file: Iterable[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 1. Raises SettingsError, which names the file, for UTF-16."""
    for number, line in enumerate(file, 1):
        if number == 1:
            try:
                check_encoding(line)
            except ValueError as error:
                raise SettingsError(f"--input: {name}: {error}") from None
        content = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if content.strip():
            yield number, content


def _parse_lines(file: Iterable[bytes], name: str) -> Iterator[ParsedLine]:
    for number, line in _numbered_lines(file, name):
        yield parse_line(number, line)


def _parse_row(number: int, row: dict[str, Any]) -> ParsedLine:
    """The row as a line would say it: there are neither times nor NaN in JSON, and none in results."""
    try:
        return parse_line(number, json.dumps(row).encode())
    except TypeError as error:
        return failed_line(number, f"not JSON: {error}")


def without_nulls(value: Any) -> Any:
    """A column, or a field of one, that a row does not have is null there."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value
