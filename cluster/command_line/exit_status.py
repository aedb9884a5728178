"""Ends a command after an error: one line on stderr, and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from cluster.command_line.end_signals import exit_on_signals
from lopa_ray.errors import CheckpointError, LopaError, PromptError, SettingsError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
"""Exit statuses: a request or case failed; the command or a setting is wrong; Ctrl-C. SIGTERM: 143; SIGHUP: 129."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turns the errors that a user can cause into a line on stderr and an exit status: it raises typer.Exit."""
    try:
        yield
        sys.stdout.flush()
    except (SettingsError, CheckpointError, PromptError) as error:
        raise error_exit(str(error), USAGE) from None
    except LopaError as error:
        raise error_exit(str(error), FAILED) from None
    except KeyboardInterrupt:
        raise error_exit("interrupted", INTERRUPTED, prefix="") from None
    except BrokenPipeError:
        discard_stdout()
        raise typer.Exit(FAILED) from None
    except OSError as error:
        if error.filename is None:
            raise
        raise error_exit(f"{error.filename}: {error.strerror}", USAGE) from None


def error_exit(message: str, status: int, prefix: str = "Error: ") -> typer.Exit:
    """Returns what to raise."""
    typer.echo(f"{prefix}{message}", err=True)
    return typer.Exit(status)


def discard_stdout() -> None:
    """The reader of stdout has closed it, so nothing more can be written, not even when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_app(app: typer.Typer) -> None:
    """Run an application, quiet when interrupted or cut off before a command runs; SIGTERM and SIGHUP end it too."""
    exit_on_signals()
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        discard_stdout()
        sys.exit(FAILED)
