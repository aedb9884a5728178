"""What every request passes through: an id and a log line outside, errors inside. Pure ASGI."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING

from cluster.serving.http.access_log import Record, log_end, log_failure, record_of
from cluster.serving.http.body import ClientGoneError
from cluster.serving.http.responder import send_json
from cluster.serving.openai.errors import api_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OWN_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestLog:
    """Outermost middleware: gives every request an id, and logs how it ended."""

    def __init__(self, app: ASGIApp, *, send_id: bool) -> None:
        """`send_id`: responses get the header here, and not from a proxy in front."""
        self._app, self._send_id = app, send_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        own = given.decode() if _OWN_ID.fullmatch(given) else uuid.uuid4().hex
        record = scope["lopa.record"] = Record(own, scope["method"], scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if self._send_id:
                    message = {**message, "headers": [*message["headers"], (b"x-request-id", own.encode())]}
            await send(message)

        began = time.perf_counter()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            log_end(record, time.perf_counter() - began)


class Failures:
    """Turns every error into a response in OpenAI's shape, and logs those that nobody expects."""

    def __init__(self, app: ASGIApp, retry_after_s: int) -> None:
        self._app, self._retry_after_s = app, retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = record_of(scope)
        try:
            await self._app(scope, receive, send)
        except ClientGoneError:
            record.error = "client_gone"
        except Exception as error:
            refusal = api_error(error, self._retry_after_s)
            record.error = refusal.code
            if refusal.status == 500:
                log_failure(record, error)
            if record.status is None:
                await send_json(send, refusal.status, refusal.body, refusal.headers)
