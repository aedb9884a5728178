"""ExperimentRecord: what an experiment measured, with all that is needed to measure it again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from lopa_lab.bench.record import Value
from lopa_lab.records.files import replace_file
from lopa_lab.records.machine import Machine
from lopa_ray.errors import SettingsError

Point: TypeAlias = dict[str, Value]
"""Parameter → value."""


class Setup(BaseModel):
    """What all points of a run have in common. A run can be continued only with the same setup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problems: int
    seed: int
    problem_texts: str
    """Fingerprint of the problems, which another version of the package may make otherwise."""
    model: str
    """Folder, or name on the Hub with its commit."""
    weights: str | None
    """Fingerprint of the files of a folder (`fingerprint`); None for a model on the Hub, which its commit pins."""
    settings: dict[str, dict[str, Any]]
    """By section, as the configuration and the command line give them."""
    timed_on: str | None = None
    """Hardware, for experiments that measure times."""


class MeasuredPoint(BaseModel):
    """A point, and what was measured there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    point: Point
    data: dict[str, Any]


class ExperimentRecord(BaseModel):
    """One whole run of one experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    command: tuple[str, ...]
    started: AwareDatetime
    """In UTC."""
    machine: Machine
    version: str
    """Of lopa-ray."""
    commit: str | None
    """Of the checkout that the code ran from when the run ended; None for an installed package."""
    setup: Setup
    points: tuple[MeasuredPoint, ...]

    @property
    def command_line(self) -> str:
        """The command, quoted for a shell."""
        return shlex.join(self.command)

    def data(self, **parameters: Value) -> dict[str, Any]:
        """Return the data of the one point with these parameters. Raises KeyError without such a point."""
        for each in self.points:
            if parameters.items() <= each.point.items():
                return each.data
        raise KeyError(parameters)

    @classmethod
    def read(cls, path: Path) -> Self:
        """A record that `write` wrote. Raises SettingsError if it is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise SettingsError(f"{path}: {error.strerror}; name a record of lopa experiment") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise SettingsError(f"{path} is no record of lopa experiment: {where}: {first['msg']}") from None

    def write(self, path: Path) -> None:
        """Write the record as JSON, with a line for each point."""
        head = self.model_dump_json(indent=1, exclude={"points"}).removesuffix("\n}")
        points = ",\n".join(f"  {each.model_dump_json()}" for each in self.points)
        replace_file(path, f'{head},\n "points": [\n{points}\n ]\n}}\n')
