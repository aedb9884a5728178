"""ASGI middleware, outermost first: request id and log, error responses, header limit and path normalisation."""

from __future__ import annotations

import re
import time
import uuid
from abc import ABC, abstractmethod

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.openai.errors import ApiError, api_error
from cluster.serving.http.access_log import RequestLogRecord, log_error, log_record_of, log_request
from cluster.serving.http.responder import send_json

REQUEST_ID_HEADER = b"x-request-id"
_VALID_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
MAX_HEADER_BYTES = 2**14  # request line and headers together


class HttpMiddleware(ABC):
    """Middleware for requests alone: the start and the end of a server pass by. Pure ASGI."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handle = self._handle if scope["type"] == "http" else self._app
        await handle(scope, receive, send)

    @abstractmethod
    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class RequestLogMiddleware(HttpMiddleware):
    """Outermost middleware: gives every request an id, and logs how it ended."""

    def __init__(self, app: ASGIApp, *, send_id: bool) -> None:
        """`send_id`: responses get the header here, and not from a proxy in front."""
        super().__init__(app)
        self._send_id = send_id

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = given_request_id(scope) or uuid.uuid4().hex
        record = scope["lopa.log_record"] = RequestLogRecord(request_id, scope["method"], scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if self._send_id:
                    headers = [*message["headers"], (REQUEST_ID_HEADER, request_id.encode())]
                    message = {**message, "headers": headers}
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, send_with_id)
        finally:
            log_request(record, time.perf_counter() - started)


class ErrorMiddleware(HttpMiddleware):
    """Turns every error into a response in OpenAI's shape, and logs errors that have no status of their own."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = log_record_of(scope)
        try:
            await self._app(scope, receive, send)
        except ClientDisconnect:
            record.error = "client_gone"
        except Exception as error:
            response = api_error(error)
            record.error = response.code
            log_error(record, error, response)
            if record.status is None:
                await send_json(send, response.status, response.body, response.headers)


class RequestTargetMiddleware(HttpMiddleware):
    """Bounds path and headers, answers HEAD as GET, and serves a path with doubled slashes, or one at its end, as if it
    had none. A redirect would lose the body or the key of some clients' requests. Raises ApiError (431)."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = len(scope.get("raw_path") or scope["path"].encode()) + len(scope["query_string"])
        size += sum(len(name) + len(value) + len(b": \r\n") for name, value in scope["headers"])
        if size > MAX_HEADER_BYTES:
            message = f"got a path and headers of {size} bytes; allowed: {MAX_HEADER_BYTES}; send less"
            raise ApiError(431, message, "headers_too_large")
        path = single_slashes(scope["path"])
        if path != f"{scope.get('root_path', '')}/":  # the first page, whose files lie below it
            path = path.rstrip("/")
        # FastAPI's routes know GET alone; the HTTP server leaves the body of a response to HEAD out.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._app({**scope, "path": path, "method": method}, receive, send)


def single_slashes(path: str) -> str:
    return re.sub("/+", "/", path)


def given_request_id(scope: Scope) -> str | None:
    """The id in a request's header; None if the request has no such header, a header that is not valid, or two."""
    values = [value for name, value in scope["headers"] if name == REQUEST_ID_HEADER]
    return values[0].decode() if len(values) == 1 and _VALID_ID.fullmatch(values[0]) else None
