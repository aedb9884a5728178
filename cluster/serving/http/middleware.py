"""What every request passes through: an id and a log line outside, errors inside. Pure ASGI."""

from __future__ import annotations

import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.openai.errors import api_error
from cluster.serving.http.access_log import RequestLogRecord, log_record_of, log_request, log_unexpected_error
from cluster.serving.http.body import ClientDisconnectedError
from cluster.serving.http.request_id import given_request_id
from cluster.serving.http.responder import send_json


class RequestLogMiddleware:
    """Outermost middleware: gives every request an id, and logs how it ended."""

    def __init__(self, app: ASGIApp, *, send_id: bool) -> None:
        """`send_id`: responses get the header here, and not from a proxy in front."""
        self._app, self._send_id = app, send_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = given_request_id(scope) or uuid.uuid4().hex
        record = scope["lopa.log_record"] = RequestLogRecord(request_id, scope["method"], scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if self._send_id:
                    message = {
                        **message,
                        "headers": [*message["headers"], (b"x-request-id", request_id.encode())],
                    }
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            log_request(record, time.perf_counter() - started)


class ErrorMiddleware:
    """Turns every error into a response in OpenAI's shape, and logs those that have no status of their own."""

    def __init__(self, app: ASGIApp, retry_after_s: int) -> None:
        self._app, self._retry_after_s = app, retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = log_record_of(scope)
        try:
            await self._app(scope, receive, send)
        except ClientDisconnectedError:
            record.error = "client_gone"
        except Exception as error:
            response = api_error(error, self._retry_after_s)
            record.error = response.code
            if response.status == 500:
                log_unexpected_error(record, error)
            if record.status is None:
                await send_json(send, response.status, response.body, response.headers)
