"""The routes under /admin, for those who run the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Depends, Request

from cluster.openai.errors import ApiError, invalid_value, short_repr
from cluster.openai.request_model import ModelRequest
from cluster.serving.http.body import read_json_object
from cluster.serving.http.dependencies import check_model, choose_model
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.http.openapi import error_responses, request_body
from cluster.serving.http.server_models import (
    ModelState,
    ModelWorkers,
    PauseRequest,
    ScaleRequest,
    SleepRequest,
    UpdateWeightsRequest,
)
from cluster.serving.protocol.backend import Backend
from cluster.serving.protocol.group import Group
from cluster.serving.protocol.messages import GroupState
from lopa_ray.errors import CheckpointError, SettingsError


def admin_routes(backend: Callable[[], Backend], settings: HttpSettings) -> APIRouter:
    may_scale = settings.admin_keys or settings.api_keys
    router = APIRouter(prefix="/admin", dependencies=[] if may_scale else [Depends(_forbid)])

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

    def add(name: str, summary: str, request_model: type[ModelRequest] | None = None) -> None:
        async def control(request: Request, model: str | None = None) -> ModelState:
            arguments: dict[str, Any] = {}
            if request_model is not None:
                body = await read_json_object(request, settings.max_body_bytes, optional=True)
                arguments = request_model.parse({"model": model} | body).model_dump(exclude_none=True)
                model = arguments.pop("model", None)
            model = choose_model(model, backend().models)
            try:
                return await _control(backend(), model, name if request_model else "is_paused", arguments)
            except (CheckpointError, SettingsError) as error:
                field = getattr(error, "setting", "source")
                raise ApiError(400, str(error), "invalid_value", param=field) from None

        router.add_api_route(
            f"/{name}",
            control,
            methods=["POST" if request_model else "GET"],
            name=name,
            summary=summary,
            responses=error_responses([400, 403, 404, 413, 415, 503]),
            openapi_extra=request_body(request_model) if request_model else None,
            dependencies=[] if settings.admin_keys else [Depends(_forbid)],
        )

    add("update_weights", "Change a model's weights while it serves", UpdateWeightsRequest)
    add("pause", "Begin no step of a model; its requests wait", PauseRequest)
    add("resume", "End a pause", ModelRequest)
    add("sleep", "Give back a model's memory; its requests get 503", SleepRequest)
    add("wake_up", "End a sleep", ModelRequest)
    add("reset_prefix_cache", "Drop a model's stored prefixes of prompts", ModelRequest)
    for name in GroupState.model_fields:
        add(name, "Whether a model is paused or sleeps, and the version of its weights")
    return router


async def _control(backend: Backend, model: str, method: str, arguments: dict[str, Any]) -> ModelState:
    """Call a method of the engine of each group. Without a version all get the same one, also groups that an update
    before did not reach."""
    if not (source := arguments.get("source", "/")).startswith("/"):
        message = f"got {short_repr(source)}; allowed: the absolute path of a folder, no name on the Hub"
        raise invalid_value("source", message)
    if method == "update_weights" and "version" not in arguments:
        groups = await backend.ask_all(model, Group.control, "is_paused", {})
        arguments["version"] = 1 + max(group.weight_version for group in groups)
    groups = await backend.ask_all(model, Group.control, method, arguments)
    return ModelState(
        model=model,
        groups=groups,
        weight_version=min(group.weight_version for group in groups),
        is_paused=all(group.is_paused for group in groups),
        is_sleeping=all(group.is_sleeping for group in groups),
    )


async def _forbid() -> None:
    raise ApiError(
        403,
        "this server has no keys for this endpoint, so it is closed; start it with some (--admin-keys FILE, or for the "
        "number of workers --api-keys FILE)",
        "admin_needs_keys",
    )
