"""Markdown tables, as the benchmarks print them."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table; the first one is its header."""
    header, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *body])
