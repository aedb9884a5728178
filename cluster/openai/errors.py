"""Errors in OpenAI's shape, and which status each of the project's own errors gets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cluster.openai.completion_objects import ChatCompletion, Completion
from cluster.openai.response_model import ResponseModel
from lopa_ray.errors import (
    ActorStartError,
    CheckpointError,
    ClusterError,
    DeadlineError,
    LopaError,
    OverloadedError,
    PromptError,
    PromptTooLongError,
    RepeatedLossError,
    RequestCancelledError,
    RequestError,
    ScoreError,
    SettingsError,
    StepLimitError,
    WorkerError,
    WorkerMemoryError,
    short_repr as short_repr,
)

_ERROR_TYPES = {429: "rate_limit_error", 499: "request_cancelled"}

_TOO_LARGE = (
    "a step of this request needs more memory than there is, also alone; lower num_branches or block_size"
)

_LOST = "the model's workers failed or were lost, and are being replaced; try again later"
_FAILED = "the model's workers fail at this request, also alone; the server's log has the details"

_RESPONSES: tuple[tuple[type[LopaError], int, str, str | None], ...] = (
    (PromptTooLongError, 400, "context_length_exceeded", None),
    (PromptError, 400, "invalid_prompt", None),
    (SettingsError, 400, "invalid_value", None),
    (OverloadedError, 429, "queue_full", None),
    (RequestCancelledError, 499, "request_cancelled", None),
    (DeadlineError, 504, "deadline_exceeded", None),
    (WorkerMemoryError, 500, "step_failed", _TOO_LARGE),
    (ScoreError, 500, "step_failed", None),
    (StepLimitError, 500, "step_failed", None),
    (ActorStartError, 503, "unavailable", _LOST),
    (ClusterError, 503, "unavailable", None),
    (RepeatedLossError, 503, "unavailable", _LOST),
    (WorkerError, 500, "step_failed", _FAILED),
    (LopaError, 503, "unavailable", _LOST),
)
"""Class, status, code and message; None: the error's own. The first class that an error is an instance of decides.
Messages of actors' errors name processes, nodes and files: these are for logs, not for clients."""

MAX_MESSAGE_CHARS = 1500


class ErrorDetail(ResponseModel):
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
    """The answer by the deadline, if `lopa.partial` asked for it; of the Responses API a ResponseObject."""


class ApiError(Exception):
    """Ends a request with this status and an error object."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        partial: Mapping[str, Any] | None = None,
    ) -> None:
        """`param` names the field of the request that is wrong; `partial` is what was decided by a deadline."""
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers, self.partial = dict(headers or {}), partial

    @property
    def body(self) -> dict[str, Any]:
        error_type = _ERROR_TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        error = {"message": self.message, "type": error_type, "param": self.param, "code": self.code}
        return {"error": error} if self.partial is None else {"error": error, "partial": self.partial}


def invalid_value(param: str, message: str) -> ApiError:
    """400: a field has a value that is not allowed."""
    return ApiError(400, f"{param}: {message}", "invalid_value", param=param)


def api_error(error: Exception, setting_fields: Mapping[str, str] | None = None) -> ApiError:
    """The response for an error, which shows nothing of the server's inside. `setting_fields`: decode setting, or
    `prompt` → the client's field, which the response names in its place."""
    fields = setting_fields or {}
    if isinstance(error, ApiError):
        return error
    for error_class, status, code, text in _RESPONSES:
        if isinstance(error, error_class) and not isinstance(error, CheckpointError):
            headers = {"Retry-After": "1"} if status in (429, 503) else {}
            if status in (500, 504):
                # OpenAI's client repeats every 5xx, but a repeated request would fail in the same way.
                headers["X-Should-Retry"] = "false"
            message, param = text or str(error), None
            if len(message) > MAX_MESSAGE_CHARS:
                # The message repeats the request, which may have megabytes.
                message = f"{message[:MAX_MESSAGE_CHARS]} ..."
            if isinstance(error, RequestError):
                message, param = _with_names_of(fields, message), fields.get(error.setting or "")
            return ApiError(status, message, code, param=param, headers=headers)
    message = (
        "the server failed in a way that it does not expect; its log has the details under this request's id"
    )
    return ApiError(500, message, "internal_error")


def _with_names_of(fields: Mapping[str, str], message: str) -> str:
    """The message with a client's field names in place of setting names. Quoted text is a value from the request."""
    names = {setting: field.rpartition(".")[2] for setting, field in fields.items() if setting != "prompt"}
    return re.sub(r"(?<!\w)'[^']*('|$)|\w+", lambda found: names.get(found[0], found[0]), message)


def decision_error(error: RequestError) -> ApiError:
    """The response for an error about a decision, whose `setting` is the field of the request."""
    response = api_error(error)
    response.param = None if error.setting == "prompt" else error.setting
    return response
