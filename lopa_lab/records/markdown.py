"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence


def escape(text: str) -> str:
    """Text on one line that is neither HTML nor the border of a table's cell."""
    return (
        re.sub(r"[ \t\r\n]+", " ", text)
        .strip()
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace("|", "\\|")
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are plain text."""
    lines = [[escape(cell) for cell in header], ["---"] * len(header)]
    lines += [[escape(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site name it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def code_block(text: str, language: str = "") -> str:
    """A fenced block with the text as it is; the fence is longer than every run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
