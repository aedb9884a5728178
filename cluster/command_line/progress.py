"""`ShownTask`: what a command is doing and how far it is, on stderr while that is a terminal.

A process has one display. A task that begins within another one is a line below it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import ClassVar, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

BAR_WIDTH = 16


class ShownTask:
    """Use it as a context manager. Where stderr is no terminal it shows nothing."""

    _display: ClassVar[Progress | None] = None
    """While a task is shown."""

    def __init__(self, doing: str, total: int | None = None, unit: str = "") -> None:
        """`total`: how many `unit` there are to do, if that is known."""
        self._doing = doing
        self._total = total
        self._unit = unit
        self._console = Console(stderr=True, highlight=False)
        self._stack = ExitStack()
        self._shown: tuple[Progress, TaskID] | None = None

    @property
    def visible(self) -> bool:
        """Whether stderr is a terminal, on which the task is shown."""
        return sys.stderr.isatty() if self._shown is None else True

    def __enter__(self) -> Self:
        if not self.visible:
            return self
        display = ShownTask._display
        if display is None:
            display = ShownTask._display = self._stack.enter_context(_make_display(self._console))
            self._stack.callback(_forget_display)
        number = display.add_task(self._doing, total=self._total, unit=self._unit)
        self._stack.callback(display.remove_task, number)
        self._shown = (display, number)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Show the task no longer. Further calls do nothing."""
        self._shown = None
        self._stack.close()

    def describe(self, doing: str) -> None:
        """It is doing something else now."""
        if self._shown is not None:
            display, number = self._shown
            display.update(number, description=doing, refresh=True)

    def advance(self) -> None:
        """One more of the total is done."""
        if self._shown is not None:
            display, number = self._shown
            display.advance(number)

    def move_to(self, completed: int) -> None:
        """So many of the total are done."""
        if self._shown is not None:
            display, number = self._shown
            display.update(number, completed=completed)

    def say(self, line: str) -> None:
        """Print a line on stderr, terminal or not, above what is shown."""
        console = self._console if self._shown is None else self._shown[0].console
        console.print(line, markup=False, soft_wrap=True)


def _make_display(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        _Bar(),
        _Count(table_column=Column(no_wrap=True)),
        _Seconds(table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
        # rich would lead what goes to a pipe to the terminal.
        redirect_stdout=sys.stdout.isatty(),
    )


def _forget_display() -> None:
    ShownTask._display = None


class _Bar(ProgressColumn):
    """Of tasks with a total; the others have the spinner alone."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = BarColumn(bar_width=BAR_WIDTH)

    def render(self, task: Task) -> RenderableType:
        return Text() if task.total is None else self._bar.render(task)


class _Count(ProgressColumn):
    """4 of 12 problems."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text()
        return Text(f"{int(task.completed)} of {int(task.total)} {task.fields['unit']}".rstrip())


class _Seconds(ProgressColumn):
    """How long it has taken so far, from the first full second on."""

    def render(self, task: Task) -> Text:
        seconds = int(task.elapsed or 0)
        if not seconds:
            return Text()
        return Text(f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60} s", "dim")
