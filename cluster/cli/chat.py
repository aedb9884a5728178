"""`lopa chat`: a conversation in the terminal."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from cluster.command_line.exit_status import FAILED
from cluster.command_line.notices import app_folder
from cluster.command_line.progress import ShownTask
from lopa_ray.errors import LopaError, PromptError, SettingsError

if TYPE_CHECKING:
    from cluster.cli.chat_partner import ChatPartner, Message

PROMPT = "> "
HELP = """\
/help        this list
/reset       begin anew; the system prompt stays
/save FILE   write the conversation to a JSON file, as `messages` of a request
/exit        end the conversation, as Ctrl-D does; Ctrl-C ends an answer alone.
A line that begins with // is a message that begins with /."""


class Conversation:
    """Messages, and the lines of a person or a pipe that add to them."""

    def __init__(self, partner: ChatPartner, system: str | None) -> None:
        self._partner = partner
        self._first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.messages = [*self._first]

    def take(self, text: str, *, typed: bool) -> None:
        """Follow a command, which only a person has, or print the answer to a message. A message without an answer is
        forgotten. Raises LopaError and KeyboardInterrupt."""
        if typed and text.startswith("/"):
            if not text.startswith("//"):
                self._follow(*text.split(maxsplit=1))
                return
            text = text.removeprefix("/")
        self.messages.append({"role": "user", "content": text})
        try:
            answer = _print_answer(self._partner, self.messages)
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": answer})

    def _follow(self, command: str, argument: str = "") -> None:
        match command:
            case "/help":
                typer.echo(HELP, err=True)
            case "/reset":
                self.messages = [*self._first]
            case "/save" if argument:
                path = Path(argument).expanduser()
                try:
                    path.write_text(
                        json.dumps(self.messages, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
                    )
                except OSError as error:
                    raise SettingsError(f"/save: cannot write {path}: {error.strerror}") from None
                typer.echo(f"{len(self.messages)} messages are in {path}.", err=True)
            case _:
                raise SettingsError(
                    f"got {command!r}; allowed: /help, /reset, /save FILE, /exit, or a message"
                )


def converse(partner: ChatPartner, system: str | None) -> None:
    """Read messages and commands from stdin, a line each, and print the answers. Raises typer.Exit with status 1 if
    lines that are not typed had errors."""
    typed = sys.stdin.isatty()
    conversation = Conversation(partner, system)
    failures = 0
    if typed:
        typer.echo("Ctrl-C ends an answer, Ctrl-D the conversation; /help lists commands.", err=True)
        _read_history()
    while (text := _next_line(typed)) is not None:
        if typed and text.strip() == "/exit":
            break
        if not text.strip():
            continue
        try:
            conversation.take(text, typed=typed)
        except LopaError as error:
            typer.echo(f"Error: {error}", err=True)
            failures += 1
        except KeyboardInterrupt:
            if not typed:
                raise
            typer.echo("\nThe answer was ended; the message is forgotten.", err=True)
    if failures and not typed:
        raise typer.Exit(FAILED)


def _read_history() -> None:
    """Give `input` a line editor with the lines of earlier conversations, where Python has one. Where the folder cannot
    be written the editor has no history, and a line says so."""
    if find_spec("readline") is None:
        return
    import atexit
    import readline

    history = app_folder() / "chat_history"
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
        readline.read_history_file(history)
    except OSError as error:
        typer.echo(f"(no history of messages: {error})", err=True)
        return
    readline.set_history_length(1000)
    atexit.register(readline.write_history_file, history)


def _next_line(typed: bool) -> str | None:
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
