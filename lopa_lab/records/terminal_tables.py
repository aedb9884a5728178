"""`terminal_tables`: a table for a terminal, cut into several where it is too wide for one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

UNLIMITED_COLUMNS = 10_000


def terminal_tables(
    header: Sequence[str], rows: Sequence[Sequence[str]], num_keys: int, console: Console
) -> list[Table]:
    """Tables that fit the console's width, each with the first `num_keys` columns and some of the others, in order.

    A table with the keys and one further column may be wider; its cells are folded.
    """
    tables: list[Table] = []
    chosen: list[int] = []
    for column in range(num_keys, len(header)):
        more = _table(header, rows, [*range(num_keys), *chosen, column])
        if chosen and _columns(more, console) > console.width:
            tables.append(_table(header, rows, [*range(num_keys), *chosen]))
            chosen = []
        chosen.append(column)
    return [*tables, _table(header, rows, [*range(num_keys), *chosen])]


def _columns(table: Table, console: Console) -> int:
    """The columns of a terminal that the table needs."""
    return Measurement.get(console, console.options.update(width=UNLIMITED_COLUMNS), table).maximum


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], columns: Iterable[int]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    for at in columns:
        cells = [row[at] for row in rows]
        # Rich would break words to make columns alike in width.
        width = max(map(len, (*cells, *header[at].split())))
        numeric = all(cell[:1] in "0123456789-–" for cell in cells)
        table.add_column(
            Text(fill(header[at], width, break_on_hyphens=False)),
            justify="right" if numeric else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(row[at]) for at in columns))
    return table
