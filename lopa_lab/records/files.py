"""Files that are whole or not there."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Write a file that has its name only once it is whole. Raises OSError."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
