"""The routes under /v1: OpenAI's, and the route that cancels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from cluster.choices.messages import ChoicesRequest, OwnedId
from cluster.openai.answer_builder import AnswerBuilder
from cluster.openai.completion_objects import ChatChunk, ChatCompletion, Completion, CompletionChunk
from cluster.openai.completions.chat import ChatBuilder, ChatRequest
from cluster.openai.completions.text import CompletionBuilder, CompletionRequest
from cluster.openai.errors import ApiError, short_repr
from cluster.openai.generation_request import GenerationRequest
from cluster.openai.model_list import ModelCard, ModelList
from cluster.openai.responses.builder import ResponsesBuilder
from cluster.openai.responses.request import ResponsesRequest
from cluster.serving.http.access_log import log_record_of, logger
from cluster.serving.http.body import read_json_object
from cluster.serving.http.dependencies import check_model, choose_model, client_of
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.http.openapi import (
    completion_response,
    error_responses,
    request_body,
    responses_response,
)
from cluster.serving.http.responder import Responder
from cluster.serving.http.server_models import CancelledRequest
from cluster.serving.protocol.backend import Backend
from cluster.typesafe.model_list import ModelMetadata, ModelMetadataList
from cluster.typesafe.system_one import HEADER

AnyRequest = TypeVar("AnyRequest", bound=GenerationRequest)
_ERROR_STATUSES = (400, 404, 409, 413, 415, 429, 499, 500, 503, 504)


def openai_routes(
    backend: Callable[[], Backend], settings: HttpSettings, running_ids: set[OwnedId]
) -> APIRouter:
    router = APIRouter(prefix="/v1")
    started = int(time.time())

    async def respond(
        http_request: Request,
        request_model: type[AnyRequest],
        new_builder: Callable[[str, AnyRequest, ChoicesRequest], AnswerBuilder],
    ) -> Responder:
        record = log_record_of(http_request.scope)
        body = await read_json_object(http_request, settings.max_body_bytes)
        logger.debug("request %s has the fields %s", record.id, sorted(body))
        request = request_model.parse(body)
        choices_request = request.as_choices_request(record.id, client_of(http_request.scope))
        record.model = choose_model(request.model, backend().models)
        builder = new_builder(record.model, request, choices_request)
        return Responder(backend(), builder, request.setting_fields(), request.warnings, record, running_ids)

    def model_card(model: str) -> ModelCard:
        return ModelCard(id=model, object="model", created=started, owned_by="lopa-ray")

    @router.post(
        "/chat/completions",
        summary="Continue a chat",
        response_model=None,
        responses={200: completion_response(ChatChunk, ChatCompletion), **error_responses(_ERROR_STATUSES)},
        openapi_extra=request_body(ChatRequest),
    )
    async def chat_completions(request: Request) -> Response:
        return await respond(request, ChatRequest, ChatBuilder)

    of_texts: dict[str, Any] = {
        "response_model": None,
        "responses": {
            200: completion_response(CompletionChunk, Completion),
            **error_responses(_ERROR_STATUSES),
        },
        "openapi_extra": request_body(CompletionRequest),
    }

    @router.post("/completions", summary="Continue texts", **of_texts)
    @router.post("/fim/completions", summary="Fill in the middle, in the words of Mercury's API", **of_texts)
    async def completions(request: Request) -> Response:
        return await respond(request, CompletionRequest, CompletionBuilder)

    @router.post(
        "/responses",
        summary="Answer with items, in the words of OpenAI's Responses API",
        response_model=None,
        responses={200: responses_response(), **error_responses(_ERROR_STATUSES)},
        openapi_extra=request_body(ResponsesRequest),
    )
    async def responses(request: Request) -> Response:
        """Nothing is stored, so no response can be asked for later."""
        return await respond(request, ResponsesRequest, ResponsesBuilder)

    @router.get("/models", summary="List the models")
    async def models(request: Request) -> ModelList | ModelMetadataList:
        """A request with the header X-TypeSafe-SDK gets the list in the shape of that protocol."""
        if HEADER in request.headers:
            day = time.strftime("%Y-%m-%d", time.gmtime(started))
            metadata = (
                ModelMetadata(name=model, description=f"{model}, served by lopa-ray", release_date=day)
                for model in backend().models
            )
            return ModelMetadataList(models=list(metadata))
        return ModelList(object="list", data=[model_card(model) for model in backend().models])

    @router.get("/models/{model:path}", summary="Look up a model", responses=error_responses([404]))
    async def one_model(model: str) -> ModelCard:
        check_model(model, backend().models)
        return model_card(model)

    @router.delete(
        "/requests/{request_id}", summary="Cancel a running request", responses=error_responses([404, 503])
    )
    async def cancel(request_id: str, http_request: Request) -> CancelledRequest:
        """`request_id` is the X-Request-ID that the request's response has. It was sent with the same API key."""
        if not await backend().cancel((client_of(http_request.scope), request_id)):
            message = f"no request {short_repr(request_id)} is running here; it may have ended"
            raise ApiError(404, message, "request_not_found", param="request_id")
        return CancelledRequest(id=request_id, object="request", cancelled=True)

    return router
