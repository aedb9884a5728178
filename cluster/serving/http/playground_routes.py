"""The playground: a page at /, and its files."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response

from cluster.openai.errors import ApiError

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "json": "application/json"}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_HEADERS = {
    # A page of this version never runs with files of another version.
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    # A browser enforces that the page loads only files of this server, and that no other page embeds it.
    "Content-Security-Policy": _POLICY,
}


def playground_routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    folder = files("cluster.serving.http").joinpath("playground")

    @router.get("/")
    def page() -> Response:
        return playground_file("index.html")

    @router.get("/playground/{name}")
    def playground_file(name: str) -> Response:
        known = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        if name not in known:
            message = f"this installation has no playground/{name}; /docs lists the routes"
            raise ApiError(404, message, "not_found")
        content = folder.joinpath(name).read_bytes()
        return Response(content, media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=_HEADERS)

    return router
