"""The HTTP application: OpenAI's API under /v1, the other routes, documentation and the playground."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response, Security
from fastapi.middleware.cors import CORSMiddleware
from pydantic import SecretStr
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Scope

from cluster.choices.messages import OwnedId
from cluster.openai.errors import ApiError
from cluster.serving.http.admin_routes import admin_routes
from cluster.serving.http.cross_site_guard import CrossSiteGuard
from cluster.serving.http.decision_routes import decision_routes
from cluster.serving.http.defaults_routes import defaults_routes
from cluster.serving.http.dependencies import require_api_key
from cluster.serving.http.health_routes import health_routes
from cluster.serving.http.http_settings import HttpSettings
from cluster.serving.http.metrics_routes import metrics_routes
from cluster.serving.http.middleware import ErrorMiddleware, RequestLogMiddleware, RequestTargetMiddleware
from cluster.serving.http.openai_routes import openai_routes
from cluster.serving.http.openapi import add_schemas, error_responses
from cluster.serving.http.playground_routes import playground_routes
from cluster.serving.http.responder import WARNING_HEADER
from cluster.serving.http.tokenizer_routes import tokenizer_routes
from cluster.serving.protocol.backend import Backend
from lopa_ray import __version__

# A browser enforces that the reference loads nothing from other hosts and is not embedded in other pages.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self' 'unsafe-inline' data: blob:; frame-ancestors 'none'"
}


METHODS = ("GET", "POST", "DELETE")  # methods of routes. HEAD is answered wherever GET is


def create_app(backend: Callable[[], Backend], settings: HttpSettings, *, send_id: bool = True) -> FastAPI:
    """`backend` is called per request. `send_id` is false where a proxy puts X-Request-ID into requests and
    responses."""
    app = FastAPI(
        title="lopa-ray",
        version=__version__,
        summary="Diffusion language models behind OpenAI's API.",
        docs_url=None,
        redoc_url=None,
        responses={} if settings.api_keys else error_responses([403]),
    )

    # The middleware that is added last is the outermost.
    if not settings.api_keys:
        app.add_middleware(
            CrossSiteGuard, allowed_hosts=settings.allowed_hosts, allowed_origins=settings.allowed_origins
        )
    app.add_middleware(RequestTargetMiddleware)
    app.add_middleware(ErrorMiddleware)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allowed_origins,
            allow_methods=[*METHODS, "HEAD"],
            allow_headers=["*"],
            expose_headers=["X-Request-ID", "Retry-After", WARNING_HEADER],
        )
    app.add_middleware(RequestLogMiddleware, send_id=send_id)

    @app.exception_handler(HTTPException)
    async def handle_http_exception(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        message = f"got {request.method} {request.scope['path']}: {error.detail}; /docs lists what there is"
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_allowed_methods(app, request.scope))
        # Raised to the middleware, which formats all errors.
        raise ApiError(error.status_code, message, code, headers=headers)

    running_ids = set[OwnedId]()
    with_key = _guarded_by(settings.api_keys)
    app.include_router(openai_routes(backend, settings, running_ids), **with_key)
    app.include_router(decision_routes(backend, settings, running_ids), **with_key)
    app.include_router(tokenizer_routes(backend, settings), **with_key)
    app.include_router(defaults_routes(backend), **with_key)
    app.include_router(health_routes(backend))
    app.include_router(metrics_routes(backend))
    app.include_router(
        admin_routes(backend, settings), **_guarded_by(settings.admin_keys or settings.api_keys)
    )
    app.include_router(playground_routes())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        page = files("cluster.serving.http").joinpath("docs.html")
        return Response(page.read_bytes(), media_type="text/html", headers=_PAGE_HEADERS)

    generate_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = add_schemas(generate_openapi())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI documents it
    return app


def _guarded_by(keys: Sequence[SecretStr]) -> dict[str, Any]:
    """Dependencies for a router whose requests need one of these keys, if there are any."""
    guard = {"dependencies": [Security(require_api_key(keys))], "responses": error_responses([401])}
    return guard if keys else {}


def _allowed_methods(app: FastAPI, scope: Scope) -> list[str]:
    """The methods that a path has. The router names the methods of the path's first route only."""
    methods = [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in app.routes)
    ]
    return [*methods, *(["HEAD"] if "GET" in methods else [])]
