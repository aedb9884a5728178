"""`lopa chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cluster.command_line.exit_status import FAILED
from cluster.command_line.progress import ShownTask
from lopa_ray.errors import LopaError, PromptError

if TYPE_CHECKING:
    from cluster.cli.chat_partner import ChatPartner, Message

PROMPT = "> "


def converse(partner: ChatPartner, system: str | None) -> None:
    """Read messages from stdin, a line each, and print the answers. A message whose answer fails, or is ended by
    Ctrl-C, is forgotten. Raises typer.Exit with status 1 if messages that are not typed had errors."""
    typed = sys.stdin.isatty()
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    failures = 0
    if typed:
        typer.echo("Ctrl-C ends an answer, Ctrl-D the conversation.", err=True)
        if find_spec("readline") is not None:
            import readline  # noqa: F401  # gives `input` a line editor with a history
    while (text := _next_message(typed)) is not None:
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        try:
            answer = _print_answer(partner, messages)
        except LopaError as error:
            typer.echo(f"Error: {error}", err=True)
            failures += 1
            messages.pop()
        except KeyboardInterrupt:
            if not typed:
                raise
            typer.echo("\nThe answer was ended; the message is forgotten.", err=True)
            messages.pop()
        else:
            messages.append({"role": "assistant", "content": answer})
    if failures and not typed:
        raise typer.Exit(FAILED)


def _next_message(typed: bool) -> str | None:
    """A line of stdin; None at its end. Raises PromptError for text that is not UTF-8."""
    try:
        text = input(PROMPT if typed and sys.stdout.isatty() else "")
        return text.removeprefix("\ufeff")  # of a file that is piped
    except EOFError:
        if typed:
            typer.echo(err=True)
        return None
    except KeyboardInterrupt:
        typer.echo(err=True)
        raise
    except UnicodeDecodeError as error:
        raise PromptError(f"stdin is not UTF-8 ({error.reason} at byte {error.start})") from None


def _print_answer(partner: ChatPartner, messages: list[Message]) -> str:
    """Print the answer to the last message, part by part, and on a terminal what it took. Returns it."""
    parts: list[str] = []
    console = Console(stderr=True, highlight=False)
    try:
        with ShownTask("Decoding") as task, closing(partner.answer(messages)) as answer:
            for part in answer:
                task.close()
                parts.append(part)
                print(part, end="", flush=True)
    finally:
        if parts and not parts[-1].endswith("\n"):
            print(flush=True)
    if console.is_terminal and partner.note:
        console.print(partner.note, style="dim", markup=False, soft_wrap=True)
    return "".join(parts)
