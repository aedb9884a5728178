"""The route that names the settings of requests that set none."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Security

from cluster.serving.backend import Backend
from cluster.serving.http.dependencies import check_model, require_api_key
from cluster.serving.http.openapi import error_responses
from cluster.serving.http.server_models import ModelDefaults
from cluster.serving.settings import HttpSettings


def defaults_routes(backend: Callable[[], Backend], settings: HttpSettings) -> APIRouter:
    """The route, for each model."""
    router = APIRouter(
        dependencies=[Security(require_api_key(settings.api_keys))] if settings.api_keys else [],
        responses=error_responses([404, 429, 503, *([401] if settings.api_keys else [])]),
    )

    @router.get("/models/{model:path}/defaults", summary="Look up what requests get that set nothing")
    async def defaults(model: str) -> ModelDefaults:
        """The model's configuration, with the sampling settings of its checkpoint. A request with a temperature and
        without a seed gets a new seed each time, whatever `seed` is here."""
        check_model(model, backend().models)
        known = await backend().defaults(model)
        return ModelDefaults(
            object="model.defaults",
            model=model,
            decoder=known.decoder,
            settings={name: dict(values) for name, values in known.settings.items()},
            refused=dict(known.refused),
            accepted_with={name: dict(values) for name, values in known.accepted_with.items()},
            max_model_len=known.max_model_len,
            is_demo_model=known.is_demo_model,
        )

    return router
