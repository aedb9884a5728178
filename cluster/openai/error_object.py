"""The object of an error, as responses and streams have it."""

from __future__ import annotations

from typing import Any

from cluster.openai.completion_objects import ChatCompletion, Completion
from cluster.openai.response_model import ResponseModel


class ErrorDetail(ResponseModel):
    """What went wrong."""

    message: str
    """The value that was given, what is allowed, and a remedy."""
    type: str
    param: str | None
    """The request's field that is wrong."""
    code: str


class ErrorObject(ResponseModel):
    """An error, as a response's body or as an event of a stream."""

    error: ErrorDetail
    partial: ChatCompletion | Completion | dict[str, Any] | None = None
    """What was decided by the deadline, if `lopa.partial` asked for it; of the Responses API a ResponseObject."""
