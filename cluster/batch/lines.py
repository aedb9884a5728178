"""The lines of a file of requests and the rows of its results, in this project's format and OpenAI's batch format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cluster.openai.errors import short_repr
from lopa_ray.config.generation_settings import OF_ANSWER
from lopa_ray.errors import PromptError
from lopa_ray.text.chat_message import read_messages
from lopa_ray.text.client_object import unknown_field_message
from lopa_ray.text_input import parse_json

if TYPE_CHECKING:
    from lopa_ray.engine.session_factory import Prompt

PROMPT_KEYS = ("prompt", "messages", "token_ids")
OPTION_KEYS = ("settings", "parse_special", *OF_ANSWER)
OPENAI_KEYS = ("custom_id", "method", "url", "body")
_RESPONSE_ID = "batch_req_"
DECISION_KEYS = ("input", "questions")  # the keys of a line with questions, both in the shape of OpenAI's API


@dataclass(frozen=True, slots=True)
class PromptLine:
    """A line in this project's format. `id` is repeated in its result, `settings` go on top of the others."""

    line: int  # number of the line, from 1
    prompt: Prompt
    id: object = None
    settings: dict[str, Any] | None = None
    parse_special: bool = True  # in raw text special tokens are recognised


@dataclass(frozen=True, slots=True)
class OpenAILine:
    line: int
    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """A line with questions about an input, in this project's format."""

    line: int
    body: dict[str, Any]  # `input` and `questions`
    id: object = None
    settings: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LineResult:
    """A line with its result, or with an error in its place."""

    line: int
    row: Mapping[str, Any]  # its row of the output
    error: str = ""  # why there is no result; empty if there is one
    worker_lost: bool = False  # its group was lost: nothing is wrong with the line itself
    tokens: int = 0
    steps: int = 0


RequestLine: TypeAlias = PromptLine | OpenAILine | DecisionLine
ParsedLine: TypeAlias = RequestLine | LineResult  # a line that is not a request already has its result


def identity(line: int, request_id: object) -> dict[str, Any]:
    """The beginning of the row of a line in this project's format."""
    return {"line": line} if request_id is None else {"line": line, "id": request_id}


def failed_line(line: int, error: str, request_id: object = None, *, worker_lost: bool = False) -> LineResult:
    return LineResult(line, {**identity(line, request_id), "error": error}, error, worker_lost)


def response_row(line: OpenAILine, status: int, body: Any) -> dict[str, Any]:
    """The row of the output for a line of OpenAI's batch files: the response that a server would have sent."""
    response = {"status_code": status, "request_id": f"batch-{line.line}", "body": body}
    return {**_openai_identity(line.line, line.custom_id), "response": response, "error": None}


def _openai_identity(line: int, custom_id: object) -> dict[str, Any]:
    return {"id": f"{_RESPONSE_ID}{line}", "custom_id": custom_id}


# Rows that are read again


def line_of(row: Mapping[str, Any]) -> int | None:
    """The number of the line that a row of the output is of; None if it does not say."""
    number = row.get("line")
    if number is None:
        text = str(row.get("id")).removeprefix(_RESPONSE_ID)
        number = int(text) if text.isdecimal() else None
    return number if type(number) is int else None


def is_failed(row: Mapping[str, Any]) -> bool:
    if row.get("error") is not None:
        return True
    response = row.get("response")
    return isinstance(response, dict) and response.get("status_code") != 200


# Reading


def parse_line(number: int, line: bytes) -> ParsedLine:
    try:
        value = parse_json(line)
    except ValueError as error:
        return failed_line(number, f"not JSON: {error}")
    return parse_record(number, value)


def parse_record(number: int, record: object) -> ParsedLine:
    if not isinstance(record, dict):
        record = {"prompt": record}
    if set(OPENAI_KEYS) & record.keys():
        return _parse_openai_line(number, record)
    request_id = record.get("id")
    try:
        if set(DECISION_KEYS) & record.keys():
            return _parse_decision(number, record)
        prompt = _parse_prompt(record)
        parse_special = _require(record, "parse_special", bool | None, "true, false") is not False
        return PromptLine(number, prompt, request_id, _parse_settings(record), parse_special)
    except PromptError as error:
        return failed_line(number, str(error), request_id)


def _parse_openai_line(number: int, record: dict[str, Any]) -> ParsedLine:
    custom_id, url, body = (record.get(key) for key in ("custom_id", "url", "body"))
    if isinstance(custom_id, str) and isinstance(url, str) and isinstance(body, dict):
        if record.get("method", "POST") == "POST":
            return OpenAILine(number, custom_id, url, body)
        problem = f"method: got {short_repr(record['method'])}; allowed: POST"
    else:
        kinds = {"custom_id": str, "url": str, "body": dict}
        wrong = next(key for key, kind in kinds.items() if not isinstance(record.get(key), kind))
        problem = f"{wrong}: got {short_repr(record.get(wrong))}; give a batch line's custom_id, method, url and body"
    error = {"code": "invalid_line", "message": problem}
    row = {**_openai_identity(number, custom_id), "response": None, "error": error}
    return LineResult(number, row, problem)


def _parse_decision(number: int, record: dict[str, Any]) -> DecisionLine:
    _check_keys(record, (*DECISION_KEYS, "id", "settings"))
    body = {key: record[key] for key in DECISION_KEYS if key in record}
    return DecisionLine(number, body, record.get("id"), _parse_settings(record))


def _check_keys(record: dict[str, Any], allowed: Sequence[str]) -> None:
    unknown = sorted(set(record) - {*allowed})
    if unknown:
        raise PromptError(f"{unknown[0]} {unknown_field_message(unknown[0], [*allowed])}")


def _parse_prompt(record: dict[str, Any]) -> Prompt:
    _check_keys(record, (*PROMPT_KEYS, "id", *OPTION_KEYS))
    given = [key for key in PROMPT_KEYS if key in record]
    if len(given) != 1:
        got = " and ".join(given) or "no prompt"
        raise PromptError(f"got {got}; give exactly one of {', '.join(PROMPT_KEYS)}")
    key, prompt = given[0], record[given[0]]
    if key == "prompt" and isinstance(prompt, str):
        return require_unicode(prompt)
    if key == "messages":
        return read_messages(_require(record, key, list, "a list of messages"))
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    allowed = "text or a list of token ids" if key == "prompt" else "a list of token ids"
    raise PromptError(f"{key}: got {short_repr(prompt)}; allowed: {allowed}")


def _require(record: dict[str, Any], key: str, kind: Any, allowed: str) -> Any:
    value = record.get(key)
    if not isinstance(value, kind):
        raise PromptError(f"{key}: got {short_repr(value)}; allowed: {allowed}")
    return value


def require_unicode(text: str) -> str:
    """The text itself. Raises PromptError for half a surrogate pair, which no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = f"the prompt is not valid Unicode at character {error.start}; repair its encoding"
        raise PromptError(message) from None
    return text


def _parse_settings(record: dict[str, Any]) -> dict[str, Any] | None:
    settings: dict[str, Any] | None = _require(record, "settings", dict | None, "an object of settings")
    given = {name: record[name] for name in OF_ANSWER if record.get(name) is not None}
    return {**(settings or {}), **given} if given else settings
