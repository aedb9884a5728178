"""Tables for a terminal: nothing is cut, and they are as wide as it at most."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lopa_lab.records.terminal_tables import terminal_tables

HEADER = [
    "decoder",
    "branches",
    "solved %",
    "forwards per step",
    "TPS top 10",
    "latency p50 ms",
    "same tokens %",
]
ROWS = [
    ["lopa", "4", "50", "3.56", "80.3", "625", "100"],
    ["multi_block", "8", "50 (1.1)", "–", "1,118", "9", "92"],
]


def shown(columns: int) -> list[list[str]]:
    """The lines of each table in a terminal of that width."""
    parts = []
    for table in terminal_tables(HEADER, ROWS, 2, Console(width=columns, file=io.StringIO())):
        text = io.StringIO()
        Console(width=columns, file=text).print(table)
        parts.append(text.getvalue().splitlines())
    return parts


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_they_fit_and_have_all_cells(columns: int) -> None:
    tables = shown(columns)
    assert all(len(line) <= columns for lines in tables for line in lines)
    cells = [cell for row in ROWS for cell in row[2:]]
    words = " ".join(" ".join(lines) for lines in tables).split()
    assert all(set(cell.split()) <= set(words) for cell in cells)
    for lines in tables:  # each begins with the keys
        body = "\n".join(lines)
        assert "lopa" in body and "multi_block" in body
    headings = " ".join(words)
    assert all(word in headings for name in HEADER for word in name.split())
