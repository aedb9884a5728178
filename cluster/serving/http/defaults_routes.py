"""The route that names the settings of requests that set none."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter

from cluster.serving.http.dependencies import check_model
from cluster.serving.http.openapi import error_responses
from cluster.serving.protocol.backend import Backend
from cluster.serving.protocol.group import Group
from cluster.serving.protocol.messages import ModelDefaults


def defaults_routes(backend: Callable[[], Backend]) -> APIRouter:
    router = APIRouter(responses=error_responses([404, 429, 503]))

    @router.get("/models/{model:path}/defaults", summary="Look up what requests get that set nothing")
    async def defaults(model: str) -> ModelDefaults:
        """The model's configuration, with the sampling settings of its checkpoint. A request with a temperature and
        without a seed gets a new seed each time, whatever `seed` is here."""
        check_model(model, backend().models)
        return await backend().ask(model, Group.defaults)

    return router
