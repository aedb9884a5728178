"""`progress_bar`: how far a command is, on stderr."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar(total: int, doing: str = "decoding") -> Progress:
    """A bar with one task, which is on show while it is entered and stderr is a terminal."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    progress.add_task(doing, total=total)
    return progress
