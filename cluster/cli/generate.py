"""`lopa generate`: an engine is opened, and decodes one prompt or a file of prompts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer
from fsspec.core import OpenFile
from fsspec.implementations.local import LocalFileSystem
from rich.console import Console

from cluster.batch.decode_lines import decode_lines
from cluster.batch.lines import LineResult, ParsedLine, require_unicode
from cluster.batch.open_engine import open_engine
from cluster.batch.result_format import StepRecorder, result_as_dict, stats_table
from cluster.batch.storage import compression_of
from cluster.cli.watch import Watcher
from cluster.command_line.exit_status import FAILED, error_exit
from cluster.command_line.progress import ShownTask, totals
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.engine.config import Config
from lopa_ray.errors import PromptError, SettingsError
from lopa_ray.text_input import decode_text

if TYPE_CHECKING:
    from lopa_ray.decoding.session import DecodeSession
    from lopa_ray.engine.base import OnStep


def read_prompt(prompt: str | None) -> str:
    """The prompt of the command line; None or "-": what stdin holds. Raises SettingsError and PromptError."""
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            raise SettingsError("no prompt; give one as an argument, on stdin, or a file with --input")
        try:
            prompt = decode_text(sys.stdin.buffer.read()).rstrip("\r\n")
        except ValueError as error:
            raise PromptError(f"stdin: {error}") from None
    if not prompt:
        raise PromptError("the prompt is empty; give some text")
    return require_unicode(prompt)


def generate_one(
    config: Config,
    prompt: str,
    *,
    local: bool,
    raw: bool,
    as_json: bool,
    trace: Path | None,
    watch: bool,
    svg: Path | None,
) -> None:
    """Decode a prompt and print the answer, with the canvas meanwhile if `watch` is set. Raises the request's error."""
    console = Console(stderr=as_json, highlight=False)
    with StepRecorder(trace) as recorder, open_engine(config, local=local) as engine:
        session = engine.create_session(prompt, raw=raw)
        watcher = None
        listeners = [recorder.listener()]
        with ExitStack() as stack:
            if not watch:
                listeners.append(_show_decided(stack, session))
            if watch or svg is not None:
                watcher = Watcher(console if watch else None, engine.tokenizer, session)
                stack.enter_context(watcher)
                listeners.append(watcher.on_step)

            def on_step(index: int, step: TraceStep) -> None:
                for listen in listeners:
                    listen(index, step)

            ((_, result),) = engine.run([session], on_step=on_step)
        if isinstance(result, Exception):
            raise result
        # Before the engine is closed: a group of actors takes seconds to end.
        if svg is not None and watcher is not None:
            watcher.save_svg(svg)
        if as_json:
            typer.echo(json.dumps(result_as_dict(result, config.decode)))
            return
        answer = result.text if result.text is not None else " ".join(map(str, result.token_ids))
        console.print(answer, markup=False, soft_wrap=True)
        console.print()
        console.print(stats_table(result, recorder, engine.config.model, engine.num_workers))


def _show_decided(stack: ExitStack, session: DecodeSession) -> OnStep:
    """A listener that shows how many positions are decided, until the stack closes."""
    task = stack.enter_context(ShownTask("Decoding", session.settings.max_new_tokens, "positions"))
    decided: dict[int, bool] = {}

    def listen(_index: int, step: TraceStep) -> None:
        step.update(decided, lambda *_: True)
        task.move_to(len(decided))

    return listen


def decode_file(
    config: Config,
    lines: Sequence[ParsedLine],
    output: str,
    *,
    local: bool,
    raw: bool = False,
    trace: Path | None = None,
) -> None:
    """Decode the lines of a file to a file of results. Raises typer.Exit if lines failed."""
    with StepRecorder(trace) as recorder, open_engine(config, local=local) as engine:
        outputs = decode_lines(engine, lines, raw=raw, recorder=recorder if trace else None)
        failures = _write_outputs(outputs, output, len(lines))
    if failures:
        raise error_exit(f"{failures} of {len(lines)} lines failed", FAILED)


def _write_outputs(outputs: Iterator[LineResult], path: str, total: int) -> int:
    """Write each output as it comes, reporting failures and what all took on stderr; returns how many failed."""
    failures = tokens = steps = 0
    began = time.perf_counter()
    with _open_output(path) as file, ShownTask("Decoding", total, "lines") as task:
        if file.isatty():
            task.close()  # the lines themselves show how far it is, and a bar would stand before each of them
        for output in outputs:
            if output.error:
                failures += 1
                task.say(f"line {output.line}: {output.error}")
            file.write(json.dumps(output.row) + "\n")
            file.flush()
            task.advance()
            tokens, steps = tokens + output.tokens, steps + output.steps
        task.say(totals(total, failures, tokens, steps, time.perf_counter() - began))
    return failures


@contextmanager
def _open_output(name: str) -> Iterator[TextIO]:
    """A file, compressed if its name says so. It gets its name only when it is whole, NAME.part until then."""
    path = Path(name)
    if name == "-":
        yield sys.stdout
    elif path.exists() and not path.is_file():  # a pipe or a device
        with path.open("w", encoding="utf-8") as file:
            yield file
    else:
        part = path.with_name(path.name + ".part")
        options = {"compression": compression_of(name), "encoding": "utf-8"}
        with OpenFile(LocalFileSystem(), str(part.absolute()), "wt", **options) as file:
            yield file
        part.replace(path)
