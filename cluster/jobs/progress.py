"""JobProgress: how far a job is, as lines of its log."""

from __future__ import annotations

import time
from collections.abc import Container

import typer

from cluster.command_line.progress import totals
from cluster.jobs.group import ChunkResult

LOG_INTERVAL_S = 10.0  # between two lines


class JobProgress:
    """Counts what this run has done and reports it; the log is what the dashboard shows of a job."""

    def __init__(self, lines: int, chunk_size: int, completed: Container[int]) -> None:
        """`completed`: chunks that an earlier run has finished."""
        self._total_lines = lines
        done = [start for start in range(0, lines, chunk_size) if start // chunk_size in completed]
        self._resumed_lines = sum(min(chunk_size, lines - start) for start in done)
        self._lines = self._failures = self._tokens = self._steps = 0
        self.started = self._last_logged = time.monotonic()
        if self._resumed_lines:
            self.log(f"{self._resumed_lines} of {lines} lines are done already")

    def add(self, result: ChunkResult) -> None:
        self._lines += len(result.rows)
        self._failures += len(result.failures)
        self._tokens += result.tokens
        self._steps += result.steps
        for failure in result.failures:
            self.log(f"line {failure.line}: {failure.error}")

    def report(self, groups: int) -> None:
        """Log one line, unless the last line is recent; `groups` are at work."""
        now = time.monotonic()
        done = self._resumed_lines + self._lines
        if now - self._last_logged < LOG_INTERVAL_S and done < self._total_lines:
            return
        self._last_logged = now
        seconds = now - self.started
        rate = self._lines / seconds
        parts = [f"{done} of {self._total_lines} lines ({100 * done / self._total_lines:.1f} %)"]
        if self._lines:
            parts += [f"{rate:.2f} lines/s", f"{self._tokens / seconds:.1f} tokens/s"]
            parts += [f"TPF {self._tokens / max(self._steps, 1):.2f}"]
            parts += [f"{(self._total_lines - done) / rate:.0f} s left"] if done < self._total_lines else []
        parts += [f"{self._failures} failed"] if self._failures else []
        parts += [f"{groups} group{'s' * (groups != 1)} at work"]
        self.log(", ".join(parts))

    def report_end(self, output: str) -> None:
        seconds = time.monotonic() - self.started
        took = totals(self._lines, self._failures, self._tokens, self._steps, seconds)
        self.log(f"{output} is complete, with {self._total_lines} lines; this run: {took}")

    @staticmethod
    def log(text: str) -> None:
        typer.echo(f"{time.strftime('%H:%M:%S')} {text}")
