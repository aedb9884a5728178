"""Notices on stderr that a person needs once on a machine, and not in each run."""

from __future__ import annotations

import hashlib
from pathlib import Path

import typer

FOLDER = "notices"


def app_folder() -> Path:
    """The folder of the commands' own files, which the user's environment decides (XDG_CONFIG_HOME on Linux)."""
    return Path(typer.get_app_dir("lopa"))


def notice(text: str) -> None:
    """Print the line, unless a run on this machine has printed it before. Where the folder cannot be written every run
    prints it."""
    shown = app_folder() / FOLDER / hashlib.sha256(text.encode()).hexdigest()[:16]
    if shown.exists():
        return
    typer.echo(text, err=True)
    try:
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.touch()
    except OSError:
        typer.echo(f"(cannot write {shown.parent}, so this line comes again)", err=True)
