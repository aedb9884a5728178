"""CrossSiteGuard: keeps web pages of other sites from using a server that asks for no API key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.openai.errors import ApiError, short_repr
from cluster.serving.http.middleware import HttpMiddleware

ANY = "*"  # all hosts or origins are allowed


class CrossSiteGuard(HttpMiddleware):
    """Raises ApiError (403) for what a browser sends for a page of another site: it names the page's origin, or says
    whether the page is of the same site (`Sec-Fetch-Site`). A page whose own name is made to resolve to this machine
    (DNS rebinding) counts as the same origin, but that name is then in `Host`."""

    def __init__(
        self, app: ASGIApp, *, allowed_hosts: Collection[str], allowed_origins: Collection[str]
    ) -> None:
        super().__init__(app)
        self._allowed_hosts = {host.lower() for host in allowed_hosts}
        self._allowed_origins = {origin.lower() for origin in allowed_origins}

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._allowed_hosts or _is_loopback((scope.get("server") or ("",))[0]):
            for host in headers.getlist("host"):
                self._check_host(host)
        self._check_site(scope["method"], headers)
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        name = (_split(f"//{host}").hostname or "").rstrip(".")
        # No other site's name can be one of these.
        if name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return
        if not self._allowed_hosts & {name, ANY}:
            message = (
                f"got the Host {short_repr(host)}; allowed without API keys: localhost, IP addresses and what "
                "args.http.allowed_hosts lists; use one of these, or list the name"
            )
            raise ApiError(403, message, "host_not_allowed")

    def _check_site(self, method: str, headers: Mapping[str, str]) -> None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if ANY in self._allowed_origins:
            return
        if origin is not None:
            authority = _split(origin).netloc.lower()
            same = authority != "" and authority == headers.get("host", "").lower()
            allowed = same or origin.lower() in self._allowed_origins
        else:
            # A link to a page of this server gives the other page nothing to read.
            followed_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
            allowed = site in (None, "none", "same-origin") or followed_link
        if not allowed:
            message = (
                f"got a request of a web page of {short_repr(origin or 'another site')}; allowed without API keys: "
                "pages of this server and of the origins in args.http.allowed_origins; list the page's origin"
            )
            raise ApiError(403, message, "origin_not_allowed")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # brackets around something other than an address
        return urlsplit("")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ip_address(name).is_loopback
