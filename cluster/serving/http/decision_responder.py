"""Runs a decision on the backend, and sends its result in the shape of the protocol that asked."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cluster.choices.decision_message import DecisionMessage
from cluster.choices.messages import OwnedId
from cluster.openai.decisions.request import DecisionRequest
from cluster.openai.errors import ApiError, decision_error
from cluster.serving.backend import Backend
from cluster.serving.http.access_log import RequestLogRecord
from cluster.serving.http.responder import run_until_disconnect, send_json
from lopa_ray.decisions.answers import DecisionResult
from lopa_ray.errors import RequestError


@dataclass(frozen=True, slots=True)
class DecisionExchange:
    """A request, and how a protocol answers it."""

    model: str
    message: DecisionMessage
    request: DecisionRequest
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the response."""


class DecisionResponder(Response):
    """The response to one request, which is computed as it is sent.

    The backend's work ends when the client disconnects, when the task is cancelled, and whenever this ends.
    """

    def __init__(
        self,
        backend: Backend,
        exchange: DecisionExchange,
        record: RequestLogRecord,
        running_ids: set[OwnedId],
    ) -> None:
        super().__init__()
        self._backend, self._exchange = backend, exchange
        self._record, self._running_ids = record, running_ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ClientDisconnectedError, the backend's errors, and ApiError for a request that is wrong."""
        try:
            await run_until_disconnect(receive, self._send(send))
        except RequestError as error:
            raise self._exchange.request.as_error(decision_error(error)) from None

    async def _send(self, send: Send) -> None:
        result = await self._result()
        self._record.prompt_tokens, self._record.completion_tokens = result.input_tokens, result.output_tokens
        response = self._exchange.request.respond(self._exchange.model, result).to_dict()
        await send_json(send, 200, response, self._exchange.headers)

    async def _result(self) -> DecisionResult:
        """The id is free again before the client gets the response."""
        owned_id = self._exchange.message.owned_id
        if owned_id in self._running_ids:
            message = f"a request with the X-Request-ID {owned_id[1]} is running; wait, or choose another id"
            raise ApiError(409, message, "request_id_in_use")
        self._running_ids.add(owned_id)
        try:
            async with aclosing(
                self._backend.decide(self._exchange.model, self._exchange.message)
            ) as results:
                (result,) = [result async for result in results]
                return result
        finally:
            self._running_ids.remove(owned_id)
