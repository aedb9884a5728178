"""BenchmarkData: the rows of a benchmark, from a file or from the Hub, and where they are from."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lopa_ray.errors import SettingsError
from lopa_ray.extras import install_advice
from lopa_ray.text_input import decode_text

DataRow = Mapping[str, Any]
Kinds = Mapping[str, type | tuple[type, ...]]
"""Keys that a row must have, and the types of their values."""

_GZIP = b"\x1f\x8b"
"""How every gzip file begins (RFC 1952, section 2.3.1)."""


@dataclass(frozen=True, slots=True)
class HubData:
    """A data set on the Hub; its split is always `test`."""

    repository: str
    configuration: str | None = None


@dataclass(frozen=True, slots=True)
class BenchmarkData:
    """Rows in the data's order, and a fingerprint of this version of the data."""

    source: str
    """A path, or a repository on the Hub. Is named in errors."""
    version: str
    """`NAME sha256:DIGITS` of a file, with the first 12 digits; `REPOSITORY@REVISION` of the Hub."""
    rows: Sequence[DataRow]
    numbers: Sequence[int]
    """By row: its line in the file, or its position on the Hub, from 1. Errors name it."""
    option: str = "--data"
    """The option of the command line that names the data. Errors begin with it."""

    @staticmethod
    def read(file: Path, *, option: str = "--data") -> BenchmarkData:
        """A file of JSON lines in UTF-8, or such a file compressed by gzip, whatever its name.

        Raises SettingsError for a file that cannot be read, lines that are no JSON objects, and a file without rows.
        """
        try:
            content = file.read_bytes()
            text = decode_text(gzip.decompress(content) if content.startswith(_GZIP) else content)
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise SettingsError(f"{option}: {file} cannot be read: {error}") from None
        version = f"{file.name} sha256:{hashlib.sha256(content).hexdigest()[:12]}"
        # `splitlines` would also split at characters that JSON allows in a string, such as U+2028.
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        if not lines:
            raise SettingsError(f"{option}: {file}: has no rows")
        rows = [_row(line, f"{option}: {file}, line {number}") for number, line in lines]
        return BenchmarkData(str(file), version, rows, [number for number, _ in lines], option)

    @staticmethod
    def download(hub: HubData) -> BenchmarkData:
        """The test split as it is on the Hub now, through the package datasets. Raises SettingsError."""
        try:
            from datasets import load_dataset
            from huggingface_hub import is_offline_mode, resolve_revision
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"--data: {hub.repository} needs the package {error.name}; {install_advice('eval')}, or give a file"
            ) from None
        try:
            revision = resolve_revision(
                hub.repository, repo_type="dataset", local_files_only=is_offline_mode()
            ).resolved
            rows = list(load_dataset(hub.repository, hub.configuration, split="test", revision=revision))
        # The exceptions of datasets and the Hub have no common base class.
        except Exception as error:
            raise SettingsError(
                f"--data: {hub.repository} cannot be loaded from the Hub ({type(error).__name__}: {error}); allowed: "
                "a file of JSON lines as well"
            ) from error
        return BenchmarkData(hub.repository, f"{hub.repository}@{revision}", rows, range(1, len(rows) + 1))

    def select(self, selects: Callable[[DataRow], bool]) -> BenchmarkData:
        """The rows that `selects` is true for, which keep their numbers."""
        kept = [index for index, row in enumerate(self.rows) if selects(row)]
        return replace(
            self, rows=[self.rows[index] for index in kept], numbers=[self.numbers[index] for index in kept]
        )

    def check(
        self, required: Callable[[DataRow], Kinds], fault: Callable[[DataRow], str | None] = lambda row: None
    ) -> None:
        """Check that each row has the keys that `required` returns for it, and that `fault` returns None for it.

        `fault` sees only rows with all required keys. Raises SettingsError naming source, row and key or fault.
        """
        for number, row in zip(self.numbers, self.rows, strict=True):
            message = _lack(row, required(row)) or fault(row)
            if message:
                raise self.error(number, message)

    def check_unique(self, key: str) -> None:
        """Check that no two rows have the same text of `key`. Raises SettingsError naming source and rows."""
        seen: dict[str, int] = {}
        for number, row in zip(self.numbers, self.rows, strict=True):
            first = seen.setdefault(str(row[key]), number)
            if first != number:
                raise self.error(
                    number, f"got the {key} {row[key]!r} of row {first}; allowed: one row per {key}"
                )

    def error(self, number: int, message: str) -> SettingsError:
        """The error that says `message` of the row of that number."""
        return SettingsError(f"{self.option}: {self.source}, row {number}: {message}")


def _row(line: str, place: str) -> DataRow:
    """Raises SettingsError that begins with `place`."""
    try:
        row = json.loads(line)  # EvalPlus's rows have Infinity
    # Beside JSONDecodeError: integers with too many digits, and nesting that is too deep.
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{place}: not valid JSON ({error}); allowed: JSON lines") from None
    if not isinstance(row, dict):
        raise SettingsError(f"{place}: got {type(row).__name__}; allowed: an object per line")
    return row


def _lack(row: DataRow, required: Kinds) -> str | None:
    for key, kind in required.items():
        if key not in row:
            return f"has no {key!r}; got {', '.join(map(str, row))}"
        if not isinstance(row[key], kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            allowed = " or ".join(kind.__name__ for kind in kinds)
            return f"{key!r}: got {type(row[key]).__name__}; allowed: {allowed}"
    return None
