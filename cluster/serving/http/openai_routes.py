"""The routes under /v1. No `annotations` from the future: FastAPI reads those of nested functions."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cluster.serving.http.access_log import logger, record_of
from cluster.serving.http.body import parse_object, read_body
from cluster.serving.http.dependencies import check_model, key_check
from cluster.serving.http.openapi import body_of, events_of, problems
from cluster.serving.http.responder import Answer
from cluster.serving.messages import Backend
from cluster.serving.openai.chat import ChatReply, ChatRequest
from cluster.serving.openai.completions import CompletionReply, CompletionRequest
from cluster.serving.openai.engine_request import make_job
from cluster.serving.openai.errors import ApiError, show
from cluster.serving.openai.generation_request import GenerationRequest
from cluster.serving.openai.response_builder import Reply
from cluster.serving.openai.response_models import (
    CancelledRequest,
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    ModelCard,
    ModelList,
)
from cluster.serving.settings import HttpSettings

if TYPE_CHECKING:
    from fastapi import APIRouter

_PROBLEMS = (400, 404, 409, 413, 429, 499, 500, 503, 504)


def v1_routes(backend: Callable[[], Backend], settings: HttpSettings) -> "APIRouter":
    """OpenAI's routes, and the one that cancels."""
    from fastapi import APIRouter, Request, Response, Security

    closed = bool(settings.api_keys)
    router = APIRouter(
        prefix="/v1",
        dependencies=[Security(key_check(settings.api_keys))] if closed else [],
        responses=problems([401]) if closed else {},
    )
    started = int(time.time())
    running: set[str] = set()

    class Exchange(Response):
        """A response that does the work, so that whatever ends it ends the work."""

        def __init__(self, answer: Answer) -> None:
            super().__init__()
            self._answer = answer

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self._answer(receive, send)

    async def exchange(request: Request, kind: type[GenerationRequest], reply_kind: type[Reply]) -> Exchange:
        record = record_of(request.scope)
        length = request.headers.get("content-length")
        body = parse_object(await read_body(request.receive, length, settings.max_body_bytes))
        logger.debug("request %s has the fields %s", record.id, sorted(body))
        asked = kind.read(body)
        job = make_job(record.id, asked, settings)
        known(asked.model)
        record.model = asked.model
        usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        reply = reply_kind(asked.model, job, include_usage=usage)
        return Exchange(Answer(backend(), reply, asked.words(), record, running, settings.retry_after_s))

    def known(model: str) -> None:
        check_model(model, backend().models)

    def card(model: str) -> ModelCard:
        return ModelCard(id=model, object="model", created=started, owned_by="lopa-ray")

    @router.post(
        "/chat/completions",
        summary="Continue a chat",
        response_model=None,
        responses={200: events_of(ChatChunk, ChatCompletion), **problems(_PROBLEMS)},
        openapi_extra=body_of(ChatRequest),
    )
    async def chat_completions(request: Request) -> Response:
        return await exchange(request, ChatRequest, ChatReply)

    @router.post(
        "/completions",
        summary="Continue texts",
        response_model=None,
        responses={200: events_of(CompletionChunk, Completion), **problems(_PROBLEMS)},
        openapi_extra=body_of(CompletionRequest),
    )
    async def completions(request: Request) -> Response:
        return await exchange(request, CompletionRequest, CompletionReply)

    @router.get("/models", summary="List the models")
    async def models() -> ModelList:
        return ModelList(object="list", data=[card(model) for model in backend().models])

    @router.get("/models/{model:path}", summary="Look up a model", responses=problems([404]))
    async def one_model(model: str) -> ModelCard:
        known(model)
        return card(model)

    @router.delete(
        "/requests/{request_id}", summary="Cancel a running request", responses=problems([404, 503])
    )
    async def cancel(request_id: str) -> CancelledRequest:
        """`request_id` is the X-Request-ID that the request was sent with, or its response has."""
        if not await backend().cancel(request_id):
            message = f"no request {show(request_id)} is running here; it may have ended"
            raise ApiError(404, message, "request_not_found", param="request_id")
        return CancelledRequest(id=request_id, object="request", cancelled=True)

    return router
