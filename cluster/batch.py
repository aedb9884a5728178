"""Many prompts from a JSONL file, decoded in flight together, with results in input order."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cluster.report import Recorder, as_json
from lopa_ray.config.decoder_settings import merge_decoder_settings, parse_decoder_settings
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.errors import LopaError, PromptError, WorkerLostError

if TYPE_CHECKING:
    from lopa_ray.decoding.session import DecodeSession
    from lopa_ray.engine.base import Engine
    from lopa_ray.engine.session_factory import Prompt

PROMPT_KEYS = ("prompt", "messages", "token_ids")


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the input. `id` is echoed in its result, `settings` go on top of the others."""

    line: int
    prompt: Prompt
    id: object = None
    settings: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A line without a result, and why."""

    line: int
    error: str
    id: object = None
    lost: bool = False
    """Its group was lost: nothing is wrong with the line itself."""

    def as_dict(self) -> dict[str, Any]:
        """Its place in the output."""
        named = {} if self.id is None else {"id": self.id}
        return {"line": self.line, **named, "error": self.error}


# Reading


def read_requests(source: str) -> list[Request | Failed]:
    """All lines of a file, or of stdin for "-"; blank ones are left out. Raises OSError."""
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [parse_line(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def parse_line(number: int, line: bytes) -> Request | Failed:
    """A request, or what is wrong with the line."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Failed(number, f"not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return Failed(number, f"not JSON: {error}")
    return parse_value(number, value)


def parse_value(number: int, value: object) -> Request | Failed:
    """The same for a line that is read already."""
    if not isinstance(value, dict):
        value = {"prompt": value}
    name = value.get("id")
    try:
        return Request(number, _prompt(value), name, _settings(value))
    except PromptError as error:
        return Failed(number, str(error), name)


def _prompt(value: dict[str, Any]) -> Prompt:
    unknown = sorted(set(value) - {*PROMPT_KEYS, "id", "settings"})
    if unknown:
        raise PromptError(f"unknown key {unknown[0]!r}; allowed: {', '.join(PROMPT_KEYS)}, id, settings")
    given = [key for key in PROMPT_KEYS if key in value]
    if len(given) != 1:
        raise PromptError(
            f"got {' and '.join(given) or 'no prompt'}; give exactly one of {', '.join(PROMPT_KEYS)}"
        )
    key, prompt = given[0], value[given[0]]
    if key == "prompt" and isinstance(prompt, str):
        return checked_text(prompt)
    if key == "messages":
        if isinstance(prompt, list) and prompt and all(_is_message(message) for message in prompt):
            return prompt
        raise PromptError(
            "messages: allowed: a list of objects with the texts role and content, at least one"
        )
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    allowed = "text or a list of token ids" if key == "prompt" else "a list of token ids"
    raise PromptError(f"{key}: got {json.dumps(prompt)[:60]}; allowed: {allowed}")


def _is_message(message: object) -> bool:
    if not isinstance(message, dict) or not {"role", "content"} <= set(message):
        return False
    return all(isinstance(text, str) and checked_text(text) == text for text in message.values())


def checked_text(text: str) -> str:
    """The text itself. Raises PromptError for half a surrogate pair, which no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt is not valid Unicode at character {error.start}; repair its encoding"
        ) from None
    return text


def _settings(value: dict[str, Any]) -> dict[str, Any] | None:
    settings = value.get("settings")
    if settings is not None and not isinstance(settings, dict):
        raise PromptError(f"settings: got {json.dumps(settings)[:60]}; allowed: an object of decode settings")
    return settings


# Running

Outcome: TypeAlias = "Failed | tuple[Request, GenerationResult, GenerationSettings]"


def as_row(outcome: Outcome) -> dict[str, Any]:
    """An outcome's place in the output."""
    if isinstance(outcome, Failed):
        return outcome.as_dict()
    request, result, settings = outcome
    named = {} if request.id is None else {"id": request.id}
    return {"line": request.line, **named, **as_json(result, settings)}


def run_requests(
    engine: Engine, lines: Sequence[Request | Failed], *, raw: bool, recorder: Recorder
) -> Iterator[Outcome]:
    """One outcome per line, in input order, each as soon as all before it are there."""
    done: dict[int, Outcome] = {}
    sessions: list[DecodeSession] = []
    places: list[tuple[int, Request]] = []
    for at, line in enumerate(lines):
        if isinstance(line, Failed):
            done[at] = line
            continue
        try:
            sessions.append(engine.create_session(line.prompt, _effective(engine, line), raw=raw))
            places.append((at, line))
        except LopaError as error:
            done[at] = Failed(line.line, str(error), line.id)
    following = 0
    while following in done:
        yield done.pop(following)
        following += 1
    steps = recorder.on_step([request.line for _, request in places])
    for index, result in engine.run(sessions, on_step=steps) if sessions else ():
        at, request = places[index]
        if isinstance(result, Exception):
            done[at] = Failed(request.line, str(result), request.id, isinstance(result, WorkerLostError))
        else:
            done[at] = (request, result, sessions[index].settings)
        while following in done:
            yield done.pop(following)
            following += 1


def _effective(engine: Engine, request: Request) -> GenerationSettings:
    default = engine.config.decode
    if not request.settings:
        return default
    values = {"decoder": default.decoder, **default.model_dump(exclude_unset=True)}
    return parse_decoder_settings(merge_decoder_settings(values, request.settings))


def write_results(
    engine: Engine, lines: Sequence[Request | Failed], output: str, *, raw: bool, recorder: Recorder
) -> int:
    """Decode all lines into `output`, reporting failures on stderr; returns how many failed."""
    failures = 0
    with _writing(output) as file, _progress(len(lines)) as progress:
        for outcome in run_requests(engine, lines, raw=raw, recorder=recorder):
            if isinstance(outcome, Failed):
                failures += 1
                progress.console.print(f"line {outcome.line}: {outcome.error}", markup=False, soft_wrap=True)
            file.write(json.dumps(as_row(outcome)) + "\n")
            file.flush()
            progress.advance(progress.task_ids[0])
    return failures


@contextmanager
def _writing(output: str) -> Iterator[TextIO]:
    """A file gets its name only when it is whole; until then the results lie in NAME.part."""
    path = Path(output)
    if output == "-":
        yield sys.stdout
    elif path.exists() and not path.is_file():  # a pipe or a device
        with path.open("w", encoding="utf-8") as file:
            yield file
    else:
        part = path.with_name(path.name + ".part")
        with part.open("w", encoding="utf-8") as file:
            yield file
        part.replace(path)


def _progress(total: int) -> Progress:
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("decoding"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    progress.add_task("", total=total)
    return progress
