"""Many prompts from a JSONL file, decoded in flight together, with results in input order.

`lopa generate --input` and the jobs share it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from cluster.batch.result_format import StepRecorder, result_as_dict
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
class BatchRequest:
    """One line of the input. `id` is echoed in its result, `settings` go on top of the others."""

    line: int
    """Number of the line, from 1."""
    prompt: Prompt
    id: object = None
    settings: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A line without a result, and why."""

    line: int
    error: str
    id: object = None
    worker_lost: bool = False
    """Its group was lost: nothing is wrong with the line itself."""

    def as_dict(self) -> dict[str, Any]:
        """Its row of the output."""
        return {**_identity(self.line, self.id), "error": self.error}


@dataclass(frozen=True, slots=True)
class CompletedRequest:
    """A line with its result."""

    request: BatchRequest
    result: GenerationResult
    settings: GenerationSettings
    """Those that it was decoded with."""

    def as_dict(self) -> dict[str, Any]:
        """Its row of the output."""
        return {
            **_identity(self.request.line, self.request.id),
            **result_as_dict(self.result, self.settings),
        }


ParsedLine: TypeAlias = BatchRequest | FailedRequest
BatchOutput: TypeAlias = CompletedRequest | FailedRequest


def _identity(line: int, request_id: object) -> dict[str, Any]:
    return {"line": line} if request_id is None else {"line": line, "id": request_id}


# Reading


def read_requests(source: str) -> list[ParsedLine]:
    """All lines of a file, or of stdin for "-"; blank ones are left out. Raises OSError."""
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [parse_line(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def parse_line(number: int, line: bytes) -> ParsedLine:
    """A request, or what is wrong with the line."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return FailedRequest(number, f"not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return FailedRequest(number, f"not JSON: {error}")
    return parse_record(number, value)


def parse_record(number: int, record: object) -> ParsedLine:
    """The same for a line whose JSON is parsed already."""
    if not isinstance(record, dict):
        record = {"prompt": record}
    request_id = record.get("id")
    try:
        return BatchRequest(number, _parse_prompt(record), request_id, _parse_settings(record))
    except PromptError as error:
        return FailedRequest(number, str(error), request_id)


def _parse_prompt(record: dict[str, Any]) -> Prompt:
    unknown = sorted(set(record) - {*PROMPT_KEYS, "id", "settings"})
    if unknown:
        raise PromptError(f"unknown key {unknown[0]!r}; allowed: {', '.join(PROMPT_KEYS)}, id, settings")
    given = [key for key in PROMPT_KEYS if key in record]
    if len(given) != 1:
        raise PromptError(
            f"got {' and '.join(given) or 'no prompt'}; give exactly one of {', '.join(PROMPT_KEYS)}"
        )
    key, prompt = given[0], record[given[0]]
    if key == "prompt" and isinstance(prompt, str):
        return require_unicode(prompt)
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
    return all(isinstance(text, str) and require_unicode(text) == text for text in message.values())


def require_unicode(text: str) -> str:
    """The text itself. Raises PromptError for half a surrogate pair, which no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt is not valid Unicode at character {error.start}; repair its encoding"
        ) from None
    return text


def _parse_settings(record: dict[str, Any]) -> dict[str, Any] | None:
    settings = record.get("settings")
    if settings is not None and not isinstance(settings, dict):
        raise PromptError(f"settings: got {json.dumps(settings)[:60]}; allowed: an object of decode settings")
    return settings


# Decoding


def decode_requests(
    engine: Engine, lines: Sequence[ParsedLine], *, raw: bool, recorder: StepRecorder | None = None
) -> Iterator[BatchOutput]:
    """One output per line, in input order, each as soon as all before it are there."""
    finished: dict[int, BatchOutput] = {}
    sessions: list[DecodeSession] = []
    submitted: list[tuple[int, BatchRequest]] = []
    for index, line in enumerate(lines):
        if isinstance(line, FailedRequest):
            finished[index] = line
            continue
        try:
            sessions.append(engine.create_session(line.prompt, _request_settings(engine, line), raw=raw))
            submitted.append((index, line))
        except LopaError as error:
            finished[index] = FailedRequest(line.line, str(error), line.id)
    next_index = 0

    def pop_in_order() -> Iterator[BatchOutput]:
        nonlocal next_index
        while next_index in finished:
            yield finished.pop(next_index)
            next_index += 1

    yield from pop_in_order()
    numbers = [request.line for _, request in submitted]
    on_step = None if recorder is None else recorder.listener(numbers)
    for at, result in engine.run(sessions, on_step=on_step) if sessions else ():
        index, request = submitted[at]
        if isinstance(result, Exception):
            worker_lost = isinstance(result, WorkerLostError)
            finished[index] = FailedRequest(request.line, str(result), request.id, worker_lost)
        else:
            finished[index] = CompletedRequest(request, result, sessions[at].settings)
        yield from pop_in_order()


def _request_settings(engine: Engine, request: BatchRequest) -> GenerationSettings:
    default = engine.config.decode
    if not request.settings:
        return default
    values = {"decoder": default.decoder, **default.model_dump(exclude_unset=True)}
    return parse_decoder_settings(merge_decoder_settings(values, request.settings))
