"""Progress: how far a job is, as lines of its log."""

from __future__ import annotations

import time
from collections.abc import Container

import typer

from cluster.jobs.group import Decoded

REPORT_S = 10.0
"""Between two lines."""


class Progress:
    """Counts what this run has done and reports it; the log is what the dashboard shows of a job."""

    def __init__(self, lines: int, chunk_size: int, done: Container[int]) -> None:
        """`done`: chunks that an earlier run has finished."""
        starts = range(0, lines, chunk_size)
        self._total = lines
        self._before = sum(
            min(chunk_size, lines - start) for index, start in enumerate(starts) if index in done
        )
        self._lines = self._failed = self._tokens = self._steps = 0
        self.began = self._reported = time.monotonic()
        if self._before:
            self.say(f"{self._before} of {lines} lines are done already")

    def add(self, decoded: Decoded) -> None:
        """A chunk is kept."""
        self._lines += len(decoded.rows)
        self._failed += len(decoded.failures)
        self._tokens += decoded.tokens
        self._steps += decoded.steps
        for failure in decoded.failures:
            self.say(f"line {failure.line}: {failure.error}")

    def report(self, groups: int) -> None:
        """One line, if the last one is some time ago; `groups` are at work."""
        now = time.monotonic()
        done = self._before + self._lines
        if now - self._reported < REPORT_S and done < self._total:
            return
        self._reported = now
        seconds = now - self.began
        rate = self._lines / seconds
        parts = [f"{done} of {self._total} lines ({100 * done / self._total:.1f} %)"]
        if self._lines:
            parts += [f"{rate:.2f} lines/s", f"{self._tokens / seconds:.1f} tokens/s"]
            parts += [f"TPF {self._tokens / max(self._steps, 1):.2f}"]
            parts += [f"{(self._total - done) / rate:.0f} s left"] if done < self._total else []
        parts += [f"{self._failed} failed"] if self._failed else []
        parts += [f"{groups} groups at work"]
        self.say(", ".join(parts))

    @staticmethod
    def say(text: str) -> None:
        """A line of the log."""
        typer.echo(f"{time.strftime('%H:%M:%S')} {text}")
