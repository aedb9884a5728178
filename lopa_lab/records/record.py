"""Record: what a command measured, with all that is needed to measure it again."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from lopa_lab.records.machine import Machine
from lopa_ray import __version__
from lopa_ray.errors import SettingsError
from lopa_ray.text_input import read_text


def replace_file(path: Path, text: str) -> None:
    """Write a file that has its name only once it is whole. Raises OSError."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


FILE_OPTIONS = ("--output", "-o", "--against")

Value: TypeAlias = bool | int | float | str | None
"""A cell of a table, or a parameter of a point; None where there is none."""


class Record(BaseModel):
    """One run of one command."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    group: ClassVar[str]
    """The group of the command: `lopa GROUP NAME` makes records of the class."""

    name: str
    """The command in its group."""
    command: tuple[str, ...]
    started: AwareDatetime
    """The start, in UTC."""
    machine: Machine
    version: str
    """The version of lopa-ray."""
    commit: str | None
    """The checkout that the code ran from; None for an installed package."""

    @classmethod
    def of_run(cls, arguments: Sequence[str], **fields: Any) -> Self:
        """The record of a run of `lopa ARGUMENTS` by this version; `fields`: the others."""
        return cls(command=("lopa", *arguments), version=__version__, **fields)

    @classmethod
    def read(cls, path: Path) -> Self:
        """A record that `write` wrote. Raises SettingsError for another file."""
        try:
            return cls.model_validate_json(read_text(path))
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}; name a record of lopa {cls.group}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise SettingsError(f"{path} is no record of lopa {cls.group}: {where}: {first['msg']}") from None
        except ValueError as error:
            raise SettingsError(f"{path} is no record of lopa {cls.group}: {error}") from None

    def write(self, path: Path) -> None:
        """Write the record as JSON. Raises SettingsError if the file cannot be written."""
        check_writable(path)
        try:
            replace_file(path, self.as_json())
        except OSError as error:
            raise SettingsError(f"--output: cannot write {path}: {error.strerror}") from None

    def as_json(self) -> str:
        """The text of the record's file."""
        return self.model_dump_json(indent=1, by_alias=True) + "\n"

    @property
    def command_line(self) -> str:
        """The command, quoted for a shell."""
        return shlex.join(self.command)

    @property
    def environment(self) -> str:
        """Hardware and versions in a line."""
        return self.machine.describe(self.version)

    @property
    def origin(self) -> str:
        """Hardware, versions, day and commit in a line."""
        return f"{self.environment}; {self.started:%Y-%m-%d}, commit {self.commit or 'unknown'}."


def check_writable(path: Path) -> None:
    """Make the folder of a record. Raises SettingsError if no file can be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--output: cannot make {path.parent}: {error.strerror}") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise SettingsError(f"--output: cannot write {path}; name a file in a writable folder")


def arguments_of_process() -> tuple[str, ...]:
    """The arguments after `lopa` on the command line of this process, without the files of records."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word in FILE_OPTIONS:
            next(words, None)
        elif word.partition("=")[0] not in FILE_OPTIONS:
            kept.append(word)
    return tuple(kept)


def now() -> datetime:
    """The time in UTC, to the second."""
    return datetime.now(UTC).replace(microsecond=0)
