"""One log line per request. It never has a body, a prompt or a key."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import quote

from starlette.types import Scope

from cluster.openai.errors import ApiError

logger = logging.getLogger("lopa.http")
CLIENT_CLOSED_REQUEST = 499  # in the log alone: no response was begun


@dataclass
class RequestLogRecord:
    id: str
    method: str
    path: str
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None  # the code of the error that it ended with
    status: int | None = None  # None as long as no response was begun


def log_record_of(scope: Scope) -> RequestLogRecord:
    record = scope["lopa.log_record"]
    assert isinstance(record, RequestLogRecord)
    return record


def log_unexpected_error(record: RequestLogRecord, error: Exception) -> None:
    logger.error("request %s failed", record.id, exc_info=error, extra={"request_id": record.id})


def log_error(record: RequestLogRecord, error: Exception, response: ApiError) -> None:
    """Log what the response to an error does not say."""
    if response.code == "internal_error":
        log_unexpected_error(record, error)
    elif response.status >= 500 and response.message != str(error):
        message = f"request {record.id}: {type(error).__name__}: {error}"
        logger.warning(message, extra={"request_id": record.id})


def log_request(record: RequestLogRecord, seconds: float) -> None:
    fields = {
        "request_id": record.id,
        "method": record.method,
        # An escaped path cannot pretend to be a line of its own.
        "path": quote(record.path),
        "status": record.status or CLIENT_CLOSED_REQUEST,
        "seconds": round(seconds, 4),
        "model": record.model,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "error": record.error,
    }
    line = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    logger.info(line, extra=fields)
