"""BenchRecord: what a benchmark measured, with all that is needed to measure it again."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from lopa_lab.records.files import replace_file
from lopa_lab.records.machine import Machine
from lopa_ray import __version__
from lopa_ray.errors import SettingsError

FILE_OPTIONS = ("--output", "-o", "--against")

Value: TypeAlias = bool | int | float | str | None
"""A cell; None where a figure does not exist."""

Row: TypeAlias = dict[str, Value]
"""Column → value. Columns of figures have their unit in their name."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """The table that a benchmark makes."""

    keys: tuple[str, ...]
    """Columns that identify a measurement; the others are figures."""
    rows: Sequence[Row]
    method: str
    """How the figures were measured, in a few sentences."""


class BenchRecord(BaseModel):
    """One run of one benchmark."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    benchmark: str
    """Subcommand of `lopa bench`."""
    command: tuple[str, ...]
    started: AwareDatetime
    """In UTC."""
    machine: Machine
    version: str
    """Of lopa-ray."""
    commit: str | None
    """Of the checkout that the code ran from; None for an installed package."""
    method: str
    keys: tuple[str, ...]
    rows: tuple[Row, ...]

    @classmethod
    def make(
        cls,
        benchmark: str,
        arguments: Sequence[str],
        device: str,
        started: datetime,
        commit: str | None,
        found: Measurements,
    ) -> Self:
        """The record of a run of `lopa ARGUMENTS` on this machine, whose figures are of `device`."""
        return cls(
            benchmark=benchmark,
            command=("lopa", *arguments),
            started=started,
            machine=Machine.here(device),
            version=__version__,
            commit=commit,
            method=found.method,
            keys=found.keys,
            rows=tuple(found.rows),
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """A record that `write` wrote. Raises SettingsError if it is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}; name a record of lopa bench") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise SettingsError(f"{path} is not a record of lopa bench: {where}: {first['msg']}") from None

    def write(self, path: Path) -> None:
        """As JSON. Raises SettingsError if the file cannot be written."""
        check_writable(path)
        try:
            replace_file(path, self.model_dump_json(indent=1) + "\n")
        except OSError as error:
            raise SettingsError(f"--output: cannot write {path}: {error.strerror}") from None

    @property
    def command_line(self) -> str:
        """The command, quoted for a shell."""
        return shlex.join(self.command)

    @property
    def figures(self) -> tuple[str, ...]:
        """Columns that are not keys, in order."""
        columns = dict.fromkeys(name for row in self.rows for name in row)
        return tuple(name for name in columns if name not in self.keys)

    def key_of(self, row: Row) -> tuple[Value, ...]:
        """The values of the columns that identify a row."""
        return tuple(row.get(name) for name in self.keys)


def check_writable(path: Path) -> None:
    """Make the folder of a record. Raises SettingsError if no file can be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--output: cannot make {path.parent}: {error.strerror}") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise SettingsError(f"--output: cannot write {path}; name a file in a writable folder")


def number(row: Row, column: str) -> float:
    """A figure. Raises ValueError if there is none."""
    value = row[column]
    if not isinstance(value, int | float):
        raise ValueError(f"{column} is {value!r}, which is not a number")
    return float(value)


def arguments_of_process() -> tuple[str, ...]:
    """What follows `lopa` on the command line of this process, without the files of records."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word in FILE_OPTIONS:
            next(words, None)
        elif word.partition("=")[0] not in FILE_OPTIONS:
            kept.append(word)
    return tuple(kept)


def now() -> datetime:
    """In UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)
