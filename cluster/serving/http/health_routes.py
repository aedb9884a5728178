"""The routes for the server's state: /health, /ping and /version. They need no API key."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from cluster.serving.http.access_log import log_record_of, log_unexpected_error
from cluster.serving.http.openapi import error_responses
from cluster.serving.http.server_models import Health, Version
from cluster.serving.protocol.backend import Backend
from lopa_ray import __version__
from lopa_ray.errors import ClusterError, LopaError


def health_routes(backend: Callable[[], Backend]) -> APIRouter:
    router = APIRouter()

    @router.get("/health", summary="Whether every decode group answers", responses=error_responses([503]))
    async def health(request: Request) -> Health:
        try:
            groups = await backend().status()
        except LopaError:
            raise
        except Exception as error:
            log_unexpected_error(log_record_of(request.scope), error)
            message = "a decode group does not answer; the log has the details, with this request's id"
            raise ClusterError(message) from error
        return Health(status="ok", groups=groups)

    async def ping(request: Request) -> Response:
        """SageMaker's health check."""
        await health(request)
        return Response()

    for add in (router.get, router.post):
        add(
            "/ping",
            summary="The same, without a body",
            response_class=Response,
            responses=error_responses([503]),
        )(ping)

    @router.get("/version", summary="The version of lopa-ray")
    async def version() -> Version:
        return Version(version=__version__)

    return router
