"""/v1/decisions and /v1/systemone: typed questions about an input, in OpenAI's shape and in TypeSafe's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import APIRouter, Request, Response

from cluster.choices.messages import OwnedId
from cluster.openai.decisions.objects import DecisionObject
from cluster.openai.decisions.request import DecisionRequest, DecisionsRequest
from cluster.openai.errors import ApiError, decision_error
from cluster.openai.response_model import dumps
from cluster.serving.http.access_log import log_record_of
from cluster.serving.http.body import read_json_object
from cluster.serving.http.dependencies import choose_model, client_of
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.http.openapi import error_responses, request_body
from cluster.serving.http.responder import run_until_disconnect, running_request
from cluster.serving.protocol.backend import Backend
from cluster.serving.protocol.group import Group
from cluster.typesafe.errors import UnprocessableError, UnprocessableObject, unprocessable
from cluster.typesafe.system_one import NO_IMAGES, REQUEST_ID_HEADER, SystemOneRequest
from cluster.typesafe.system_one_answers import SystemOneResponse
from lopa_ray.decisions.answers import DecisionResult
from lopa_ray.errors import RequestError

_ERROR_STATUSES = (404, 409, 413, 415, 429, 499, 500, 503, 504)


def decision_routes(
    backend: Callable[[], Backend], settings: HttpSettings, running_ids: set[OwnedId]
) -> APIRouter:
    router = APIRouter(prefix="/v1")

    async def decide(
        http_request: Request, request: DecisionRequest, headers: Mapping[str, str] | None = None
    ) -> Response:
        record = log_record_of(http_request.scope)
        model = record.model = choose_model(request.model, backend().models)
        message = request.as_message(record.id, client_of(http_request.scope))

        async def result() -> DecisionResult:
            async with running_request(backend(), model, Group.decide, message, running_ids) as results:
                (only,) = [result async for result in results]
                return only

        try:
            decided = await run_until_disconnect(http_request.receive, result())
        except RequestError as error:
            raise request.as_error(decision_error(error)) from None
        record.prompt_tokens, record.completion_tokens = decided.input_tokens, decided.output_tokens
        body = dumps(request.respond(model, decided).to_dict())
        return Response(body, media_type="application/json", headers=headers)

    @router.post(
        "/decisions",
        summary="Answer typed questions about an input by probabilities",
        response_model=None,
        responses={200: {"model": DecisionObject}, **error_responses((400, *_ERROR_STATUSES))},
        openapi_extra=request_body(DecisionsRequest),
    )
    async def decisions(http_request: Request) -> Response:
        request = DecisionsRequest.parse(await read_json_object(http_request, settings.max_body_bytes))
        return await decide(http_request, request)

    @router.post(
        "/systemone",
        summary="Answer typed questions about a state, in the words of TypeSafe's API",
        response_model=None,
        responses={
            200: {"model": SystemOneResponse},
            422: {"model": UnprocessableObject, "description": "The request is wrong: `loc` is the field."},
            **error_responses(_ERROR_STATUSES),
        },
        openapi_extra=request_body(SystemOneRequest),
    )
    async def systemone(http_request: Request) -> Response:
        try:
            if http_request.headers.get("content-type", "").startswith("multipart/"):
                raise UnprocessableError(["assets"], f"assets {NO_IMAGES}", "unsupported_parameter")
            request = SystemOneRequest.parse(await read_json_object(http_request, settings.max_body_bytes))
        except ApiError as error:
            raise unprocessable(error) from None
        return await decide(http_request, request, {REQUEST_ID_HEADER: log_record_of(http_request.scope).id})

    return router
