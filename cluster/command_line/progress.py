"""`ShownTask`: what a command is doing and how far it is, as a line of the one display of a process on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar, Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

BAR_WIDTH = 16


class ShownTask:
    """Use it as a context manager. Where stderr is not a terminal it shows nothing."""

    _display: ClassVar[Progress | None] = None  # while a task is shown

    def __init__(self, doing: str, total: int | None = None, unit: str = "") -> None:
        """`total`: how many `unit` there are to do, if that is known."""
        self._doing, self._total, self._unit = doing, total, unit
        self._console = Console(stderr=True, highlight=False)
        self._stack = ExitStack()
        self._shown: tuple[Progress, TaskID] | None = None

    @property
    def visible(self) -> bool:
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
        self._update(description=doing, refresh=True)

    def advance(self) -> None:
        self._update(advance=1)

    def move_to(self, completed: int) -> None:
        self._update(completed=completed)

    def move_within(self, completed: int, total: int) -> None:
        """For a task whose total is known later."""
        self._update(completed=completed, total=total)

    def _update(self, **fields: Any) -> None:
        if self._shown is not None:
            display, number = self._shown
            display.update(number, **fields)

    def say(self, line: str) -> None:
        """Print a line on stderr, terminal or not, above what is shown."""
        console = self._console if self._shown is None else self._shown[0].console
        console.print(line, markup=False, soft_wrap=True)


def _make_display(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        # Tasks without a total have the spinner alone.
        _Shown(lambda task: Text() if task.total is None else BarColumn(BAR_WIDTH).render(task), Column()),
        _Shown(_count, Column(no_wrap=True)),
        _Shown(_seconds, Column(no_wrap=True)),
        console=console,
        transient=True,
        # rich would lead what goes to a pipe to the terminal.
        redirect_stdout=sys.stdout.isatty(),
    )


def _forget_display() -> None:
    ShownTask._display = None


class _Shown(ProgressColumn):
    def __init__(self, draw: Callable[[Task], RenderableType], column: Column) -> None:
        super().__init__(column)
        self._draw = draw

    def render(self, task: Task) -> RenderableType:
        return self._draw(task)


def _count(task: Task) -> Text:
    if task.total is None:
        return Text()
    return Text(f"{task.completed:.0f} of {task.total:.0f} {task.fields['unit']}".rstrip())


def _seconds(task: Task) -> Text:
    """Since the beginning, and until the end where the task's speed is known."""
    shown = duration(task.elapsed or 0)
    left = task.time_remaining
    return Text(f"{shown}, {duration(left)} left" if left else shown, "dim")


def duration(seconds: float) -> str:
    """For a person, as "2 min 5 s"; empty below a second."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s" if seconds else ""


def totals(lines: int, failed: int, tokens: int, steps: int, seconds: float) -> str:
    """What a file of requests took, in a line."""
    parts = [f"{lines} line{'s' * (lines != 1)} in {seconds:.1f} s"] + [f"{failed} failed"] * bool(failed)
    if steps:
        parts += [
            f"{tokens} tokens in {steps} steps, TPF {tokens / steps:.2f}",
            f"{tokens / seconds:.1f} tokens/s",
        ]
    return "; ".join(parts)
