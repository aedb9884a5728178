"""Runs a request on the backend and sends its outputs, at once or as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.choices.messages import ChoicesOutput, OwnedId, RequestAccepted
from cluster.openai.answer_builder import AnswerBuilder
from cluster.openai.errors import ApiError, api_error
from cluster.openai.events import ServerSentEvent
from cluster.openai.response_model import dumps
from cluster.serving.http.access_log import RequestLogRecord, log_error
from cluster.serving.protocol.backend import AnswerT, Backend, RequestT, StreamingCall
from cluster.serving.protocol.group import Group
from lopa_ray.errors import RequestError

SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold events back
}

WARNING_HEADER = "X-Warning"  # names what of a request was left out


class Responder(Response):
    """The response to one request, which decodes as it is sent, and ends the backend's work when this ends."""

    def __init__(
        self,
        backend: Backend,
        builder: AnswerBuilder,
        setting_fields: Mapping[str, str],
        warnings: Sequence[str],
        record: RequestLogRecord,
        running_ids: set[OwnedId],
    ) -> None:
        """`setting_fields`: see `api_error`. `warnings` are in a header of the response."""
        super().__init__()
        self._backend, self._builder, self._setting_fields = backend, builder, setting_fields
        self._record, self._running_ids = record, running_ids
        self._warning_headers = {WARNING_HEADER: "; ".join(warnings)} if warnings else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ClientDisconnect, and as long as nothing was sent the backend's errors and ApiError."""
        respond = self._send_stream if self._builder.request.stream else self._send_completion
        try:
            await run_until_disconnect(receive, respond(send))
        except RequestError as error:  # raised by the group before anything is sent
            raise api_error(error, self._setting_fields) from None
        finally:
            self._record.prompt_tokens = self._builder.prompt_tokens
            self._record.completion_tokens = self._builder.completion_tokens

    def _outputs(self) -> AbstractAsyncContextManager[AsyncIterator[ChoicesOutput]]:
        request = self._builder.request
        return running_request(self._backend, self._builder.model, Group.generate, request, self._running_ids)

    async def _send_completion(self, send: Send) -> None:
        async with self._outputs() as outputs:
            async for output in outputs:
                self._builder.add(output)
        await send_json(send, 200, self._builder.completion(), self._warning_headers)

    async def _send_stream(self, send: Send) -> None:
        failure: ApiError | None = None
        async with self._outputs() as outputs:
            # A rejection comes before anything else, and is an HTTP error.
            accepted = await anext(outputs)
            if not isinstance(accepted, RequestAccepted):
                raise RuntimeError(f"{type(accepted).__name__} came before RequestAccepted")
            headers = _header_lines(SSE_HEADERS | self._warning_headers)
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                await _send_events(send, self._builder.events(accepted))
                async for output in outputs:
                    await _send_events(send, self._builder.events(output))
                await _send_events(send, self._builder.last_events())
            except Exception as error:
                failure = api_error(error)
                log_error(self._record, error, failure)
                self._record.error = failure.code
        if failure is not None:
            await _send_events(send, self._builder.error_events(failure))
        if self._builder.end_of_stream is not None:
            await _send_events(send, [self._builder.end_of_stream])
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def running_request(
    backend: Backend,
    model: str,
    call: StreamingCall[RequestT, AnswerT],
    request: RequestT,
    running_ids: set[OwnedId],
) -> AsyncIterator[AsyncIterator[AnswerT]]:
    """The backend's outputs. On leaving the request has ended, and its id is free again. `running_ids`: ids of all
    requests that are being answered. Raises ApiError (409) if the client has one of that id."""
    owned_id = request.owned_id
    if owned_id in running_ids:
        message = f"a request with the X-Request-ID {owned_id[1]} is running; wait, or choose another id"
        raise ApiError(409, message, "request_id_in_use")
    running_ids.add(owned_id)
    try:
        async with aclosing(backend.stream(model, call, request)) as outputs:
            yield outputs
    finally:
        running_ids.remove(owned_id)


async def run_until_disconnect(receive: Receive, coroutine: Coroutine[Any, Any, AnswerT]) -> AnswerT:
    """The result of a coroutine, which has ended when this returns or raises. If the client disconnects first, cancel
    it and raise ClientDisconnect."""
    task = asyncio.ensure_future(coroutine)
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        disconnect.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def send_json(send: Send, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
    body = dumps(value)
    fixed = {"content-type": "application/json", "content-length": str(len(body))}
    lines = _header_lines({**fixed, **(headers or {})})
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _header_lines(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), text.encode()) for name, text in headers.items()]


async def _send_events(send: Send, events: Iterable[ServerSentEvent]) -> None:
    for event in events:
        await send({"type": "http.response.body", "body": event.encode(), "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
