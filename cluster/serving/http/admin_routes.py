"""The routes under /admin, for those who run the server."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Depends, Request

from cluster.openai.errors import ApiError
from cluster.serving.http.body import read_json_object
from cluster.serving.http.dependencies import check_model
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.http.openapi import error_responses, request_body
from cluster.serving.http.server_models import ModelWorkers, ScaleRequest
from cluster.serving.protocol.backend import Backend
from cluster.serving.protocol.group import Group


def admin_routes(backend: Callable[[], Backend], settings: HttpSettings) -> APIRouter:
    router = APIRouter(prefix="/admin", dependencies=[] if settings.api_keys else [Depends(_forbid)])

    @router.get(
        "/models/{model:path}/workers",
        summary="The workers of a model's groups",
        responses=error_responses([404, 503]),
    )
    async def workers(model: str) -> ModelWorkers:
        check_model(model, backend().models)
        groups = await backend().ask_all(model, Group.workers)
        return ModelWorkers(object="model.workers", model=model, groups=groups)

    @router.post(
        "/models/{model:path}/workers",
        summary="Change how many workers a model's groups have, while they decode",
        responses=error_responses([400, 404, 413, 415, 503]),
        openapi_extra=request_body(ScaleRequest),
    )
    async def resize(model: str, request: Request) -> ModelWorkers:
        """Workers change how fast a step is, never an answer. New workers join when they have a place and have
        loaded the model; the answer says how many are on their way."""
        check_model(model, backend().models)
        scale_request = ScaleRequest.parse(await read_json_object(request, settings.max_body_bytes))
        groups = await backend().ask_all(model, Group.resize, scale_request.num_workers)
        return ModelWorkers(object="model.workers", model=model, groups=groups)

    return router


async def _forbid() -> None:
    raise ApiError(
        403,
        "this server has no API keys, so this endpoint is closed; start it with keys (--api-keys FILE)",
        "admin_needs_keys",
    )
