"""Measurements: the table that a benchmark makes, and BenchRecord, its record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Self, TypeAlias

from pydantic import Field

from lopa_lab.records.machine import Machine
from lopa_lab.records.record import Record, Value
from lopa_ray import __version__

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


class BenchRecord(Record):
    """One run of one benchmark."""

    group: ClassVar[str] = "bench"
    name: str = Field(alias="benchmark")
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
        measurements: Measurements,
    ) -> Self:
        """The record of a run of `lopa ARGUMENTS` on this machine, whose figures are of `device`."""
        return cls(
            benchmark=benchmark,
            command=("lopa", *arguments),
            started=started,
            machine=Machine.here(device),
            version=__version__,
            commit=commit,
            method=measurements.method,
            keys=measurements.keys,
            rows=tuple(measurements.rows),
        )

    @property
    def figures(self) -> tuple[str, ...]:
        """Columns that are not keys, in order."""
        columns = dict.fromkeys(name for row in self.rows for name in row)
        return tuple(name for name in columns if name not in self.keys)

    def key_of(self, row: Row) -> tuple[Value, ...]:
        """The values of the columns that identify a row."""
        return tuple(row.get(name) for name in self.keys)


def number(row: Row, column: str) -> float:
    """A figure. Raises ValueError if there is none."""
    value = row[column]
    if not isinstance(value, int | float):
        raise ValueError(f"{column} is {value!r}, which is not a number")
    return float(value)
