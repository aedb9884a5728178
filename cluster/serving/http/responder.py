"""Runs a job and sends what comes of it, at once or as server-sent events. Pure ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cluster.serving.http.access_log import Record, log_failure
from cluster.serving.http.body import ClientGoneError
from cluster.serving.messages import Accepted, Backend, Message
from cluster.serving.openai.errors import ApiError, api_error
from cluster.serving.openai.field_names import FieldNames
from cluster.serving.openai.response_builder import Reply
from cluster.serving.openai.response_models import dumps
from lopa_ray.errors import PromptError, SettingsError

if TYPE_CHECKING:
    from starlette.types import Receive, Send

STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""The last one keeps nginx from holding events back."""


@dataclass(frozen=True)
class Answer:
    """Answers one request.

    The job ends when the client goes away, when the task is cancelled, and whenever this ends.
    """

    backend: Backend
    reply: Reply
    words: FieldNames
    record: Record
    running: set[str]
    """Ids of the requests that are being answered."""
    retry_after_s: int

    async def __call__(self, receive: Receive, send: Send) -> None:
        """Raises ClientGoneError, and as long as nothing was sent the backend's errors and ApiError."""
        try:
            await until_gone(receive, self._stream(send) if self.reply.job.pieces else self._whole(send))
        except (PromptError, SettingsError) as error:  # the group's, before anything is sent
            raise self.words.refusal(error, api_error(error, self.retry_after_s)) from None
        finally:
            self.record.prompt_tokens = self.reply.prompt_tokens
            self.record.completion_tokens = self.reply.completion_tokens

    @asynccontextmanager
    async def _messages(self) -> AsyncIterator[AsyncIterator[Message]]:
        """What comes of the job. Its id is free again before the client hears of the end, and may use it anew."""
        job = self.reply.job
        if job.id in self.running:
            message = f"a request with the X-Request-ID {job.id} is running; wait, or choose another"
            raise ApiError(409, message, "request_id_in_use")
        self.running.add(job.id)
        try:
            async with aclosing(self.backend.run(self.reply.model, job)) as messages:
                yield messages
        finally:
            self.running.remove(job.id)

    async def _whole(self, send: Send) -> None:
        async with self._messages() as messages:
            async for message in messages:
                self.reply.add(message)
        await send_json(send, 200, self.reply.whole())

    async def _stream(self, send: Send) -> None:
        refusal: ApiError | None = None
        async with self._messages() as messages:
            # A refusal comes before anything else, and is an HTTP error.
            accepted = await anext(messages)
            if not isinstance(accepted, Accepted):
                raise RuntimeError(
                    f"request {self.reply.job.id}: {type(accepted).__name__} came before Accepted"
                )
            await send({"type": "http.response.start", "status": 200, "headers": [*STREAM_HEADERS]})
            try:
                async for event in self._events(accepted, messages):
                    await _send_event(send, dumps(event))
            except Exception as error:
                refusal = api_error(error, self.retry_after_s)
                if refusal.status == 500:
                    log_failure(self.record, error)
                self.record.error = refusal.code
        if refusal is not None:
            await _send_event(send, dumps(refusal.body))
        await _send_event(send, b"[DONE]")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, first: Message, rest: AsyncIterator[Message]) -> AsyncIterator[dict[str, Any]]:
        for event in self.reply.events(first):
            yield event
        async for message in rest:
            for event in self.reply.events(message):
                yield event
        for event in self.reply.end():
            yield event


async def until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work. If the client goes away first, cancel it and raise ClientGoneError.

    When this returns or raises, the work has ended, and with it all that it had open.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        else:
            watch.result()
            raise ClientGoneError
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def send_json(send: Send, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
    """A whole response."""
    body = dumps(value)
    fixed = {"content-type": "application/json", "content-length": str(len(body))}
    lines = [(name.lower().encode(), text.encode()) for name, text in {**fixed, **(headers or {})}.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_event(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
