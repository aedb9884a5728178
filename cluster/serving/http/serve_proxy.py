"""The work of Ray Serve's HTTP proxy before this project's application gets a request. Serve calls `set_up` in each of
its proxies, where `CALLBACK_VARIABLE` names it (`lopa serve` sets it)."""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.types import Receive, Scope, Send
from uvicorn.config import HTTP_PROTOCOLS

from cluster.serving.http.lost_ingress import LostIngressMiddleware
from cluster.serving.http.middleware import (
    REQUEST_ID_HEADER,
    HttpMiddleware,
    given_request_id,
    single_slashes,
)

CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK = f"{__name__}:set_up"

_SERVE_HEADERS = {
    b"serve-multiplexed-model-id",
    b"x-request-disconnect-disabled",
    b"x-request-timeout-seconds",
    b"x-session-id",
}
"""Headers, also with underscores, by which a client would tell Serve's proxy how to treat its request, and bytes that
are not UTF-8 would be a 500."""


def set_up() -> list[Middleware]:
    """Bound the headers of requests in this process; returns the middleware that Serve is to put around its own.
    httptools keeps headers of any length in memory, h11 16 KiB. Serve has no setting for it."""
    HTTP_PROTOCOLS["auto"] = HTTP_PROTOCOLS["h11"]
    return [Middleware(LostIngressMiddleware), Middleware(RequestFilter)]


class RequestFilter(HttpMiddleware):
    """Takes what Serve would misread out of requests: its own headers, doubled slashes, and an X-Request-ID that is not
    valid. Serve then makes one, and sends it with the response; a header that is there it would repeat as it is."""

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        removed = _SERVE_HEADERS if given_request_id(scope) else _SERVE_HEADERS | {REQUEST_ID_HEADER}
        headers = [header for header in scope["headers"] if header[0].replace(b"_", b"-") not in removed]
        path = single_slashes(scope["path"])
        await self._app({**scope, "headers": headers, "path": path}, receive, send)
