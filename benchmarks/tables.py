"""What the programs here that measure something print."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a Markdown table; the first one is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])
