"""/v1/decisions and /v1/systemone: typed questions about an input, in OpenAI's shape and in TypeSafe's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import APIRouter, Request, Response, Security

from cluster.choices.messages import OwnedId
from cluster.openai.decisions.objects import DecisionObject
from cluster.openai.decisions.request import DecisionsRequest
from cluster.openai.errors import ApiError
from cluster.serving.backend import Backend
from cluster.serving.http.access_log import log_record_of
from cluster.serving.http.body import read_json_object
from cluster.serving.http.decision_responder import DecisionExchange, DecisionResponder
from cluster.serving.http.dependencies import choose_model, client_of, require_api_key
from cluster.serving.http.openapi import error_responses, request_body
from cluster.serving.settings import HttpSettings
from cluster.typesafe.errors import UnprocessableError, UnprocessableObject, unprocessable
from cluster.typesafe.system_one import (
    NO_IMAGES,
    REQUEST_ID_HEADER,
    SystemOneRequest,
)
from cluster.typesafe.system_one_answers import SystemOneResponse

_ERROR_STATUSES = (404, 409, 413, 415, 429, 499, 500, 503, 504)


def decision_routes(
    backend: Callable[[], Backend], settings: HttpSettings, running_ids: set[OwnedId]
) -> APIRouter:
    """Both routes. `running_ids`: see `Responder`."""
    router = APIRouter(
        prefix="/v1",
        dependencies=[Security(require_api_key(settings.api_keys))] if settings.api_keys else [],
        responses=error_responses([401]) if settings.api_keys else {},
    )

    def respond(http_request: Request, exchange: DecisionExchange) -> Response:
        record = log_record_of(http_request.scope)
        record.model = exchange.model
        return DecisionResponder(backend(), exchange, record, running_ids)

    @router.post(
        "/decisions",
        summary="Answer typed questions about an input by probabilities",
        response_model=None,
        responses={200: {"model": DecisionObject}, **error_responses((400, *_ERROR_STATUSES))},
        openapi_extra=request_body(DecisionsRequest),
    )
    async def decisions(http_request: Request) -> Response:
        record, client = log_record_of(http_request.scope), client_of(http_request.scope)
        request = DecisionsRequest.parse(await read_json_object(http_request, settings.max_body_bytes))
        message = request.as_message(record.id, client)
        model = choose_model(request.model, backend().models)
        return respond(http_request, DecisionExchange(model, message, request))

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
        record, client = log_record_of(http_request.scope), client_of(http_request.scope)
        with _unprocessable():
            if http_request.headers.get("content-type", "").startswith("multipart/"):
                raise UnprocessableError(["assets"], f"assets {NO_IMAGES}", "unsupported_parameter")
            request = SystemOneRequest.parse(await read_json_object(http_request, settings.max_body_bytes))
        message = request.as_message(record.id, client)
        model = choose_model(request.model, backend().models)
        headers = {REQUEST_ID_HEADER: record.id}
        return respond(http_request, DecisionExchange(model, message, request, headers))

    return router


@contextmanager
def _unprocessable() -> Iterator[None]:
    """Raises errors about a body as clients of TypeSafe's protocol expect them."""
    try:
        yield
    except ApiError as error:
        raise unprocessable(error) from None
