"""One log line per request. It never has a body, a prompt or a key."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from starlette.types import Scope

logger = logging.getLogger("lopa.http")

GONE = 499
"""The status in the log where no response was begun, because its client had gone."""


@dataclass
class Record:
    """What is logged about a request."""

    id: str
    method: str
    path: str
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None
    """The code of the error that it ended with."""
    status: int | None = None
    """None as long as no response was begun."""


def record_of(scope: Scope) -> Record:
    """The record that `RequestLog` made for a request."""
    record = scope["lopa.record"]
    assert isinstance(record, Record)
    return record


def log_failure(record: Record, error: Exception) -> None:
    """An error that nobody expects, with its traceback."""
    logger.error("request %s failed", record.id, exc_info=error, extra={"request_id": record.id})


def log_end(record: Record, seconds: float) -> None:
    """How a request ended."""
    fields = {
        "request_id": record.id,
        "method": record.method,
        # An escaped path cannot pretend to be a line of its own.
        "path": quote(record.path),
        "status": record.status or GONE,
        "seconds": round(seconds, 4),
        "model": record.model,
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
        "error": record.error,
    }
    told = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
    logger.info(told, extra=fields)
