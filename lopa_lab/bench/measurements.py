"""Measurements: the table that a benchmark makes; BenchRecord, its record; tables of records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from pydantic import Field

from lopa_lab.records.record import Record, Value
from lopa_ray.errors import SettingsError

Row: TypeAlias = dict[str, Value]
"""Column → value. Columns of figures have their unit in their name."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """The table that a benchmark makes."""

    keys: tuple[str, ...]
    """Columns that identify a measurement; the others are figures."""
    rows: Sequence[Row]
    method: str
    """A few sentences on how the figures were measured."""


class BenchRecord(Record):
    """One run of one benchmark."""

    group: ClassVar[str] = "bench"
    name: str = Field(alias="benchmark")
    method: str
    keys: tuple[str, ...]
    rows: tuple[Row, ...]

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


def percentile_ms(ascending: Sequence[float], share: float) -> float | None:
    """The smallest of the values, in seconds, that so large a share does not exceed, in milliseconds; None of none."""
    if not ascending:
        return None
    return 1000 * ascending[math.ceil(share * len(ascending)) - 1]


def format_value(value: Value) -> str:
    """Three significant digits of a float, thousands apart; a dash where there is no figure."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return value


def varying_keys(record: BenchRecord) -> list[str]:
    """Keys in which rows differ; the first one if there are none."""
    varying = [name for name in record.keys if len({row.get(name) for row in record.rows}) > 1]
    return varying or list(record.keys[:1])


def common_values(record: BenchRecord) -> str:
    """The other keys with the value that all rows have."""
    varying = varying_keys(record)
    return ", ".join(
        f"{name} {format_value(record.rows[0].get(name))}" for name in record.keys if name not in varying
    )


def record_table(record: BenchRecord) -> list[list[str]]:
    """Header and rows as text, without `common_values`."""
    columns = (*varying_keys(record), *record.figures)
    return [list(columns), *([format_value(row.get(name)) for name in columns] for row in record.rows)]


def compared_table(record: BenchRecord, earlier: BenchRecord) -> list[list[str]]:
    """A table as of `record_table`, with each number's ratio to the earlier number in brackets where both exist.

    Both are of the same benchmark. Raises SettingsError if they have no row in common.
    """
    before = {record.key_of(row): row for row in earlier.rows if set(record.keys) <= set(row)}
    if not any(record.key_of(row) in before for row in record.rows):
        raise SettingsError(
            f"--against: no row of the earlier record has the same {', '.join(record.keys)} as one of this run; "
            f"measure the same: {earlier.command_line}"
        )
    header, *cells = record_table(record)
    for row, line in zip(record.rows, cells, strict=True):
        old = before.get(record.key_of(row), {})
        for at, name in enumerate(header):
            line[at] += "" if name in record.keys else _ratio(row.get(name), old.get(name))
    return [header, *cells]


def _ratio(now: Value, before: Value) -> str:
    numbers = [
        value for value in (now, before) if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) < 2 or not before:
        return ""
    return f" ({numbers[0] / numbers[1]:.2f}×)"


def differences(record: BenchRecord, earlier: BenchRecord) -> list[str]:
    """Other differences between two runs, which may explain a ratio: one line each."""
    values = {
        "machine": (record.machine.hardware, earlier.machine.hardware),
        "packages": (record.machine.package_list, earlier.machine.package_list),
        "commit": (record.commit, earlier.commit),
        "method": (record.method, earlier.method),
    }
    return [f"{what}: {now} now, {then} before" for what, (now, then) in values.items() if now != then]
