"""`open_response`: a request to a server, and its errors as this project's. Standard library only."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cluster.command_line.loopback import opener_for
from lopa_ray.errors import ClusterError, SettingsError


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A key is sent to the server that was named and to no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an answer like any other that is not 200."""


@contextmanager
def open_response(
    server: str,
    path: str,
    *,
    api_key: str | None,
    body: Mapping[str, Any] | None = None,
    timeout_s: float,
    kind: str = "lopa serve",
) -> Iterator[http.client.HTTPResponse]:
    """The response to a GET of `path` at `server`, or to a POST where there is a body. Raises SettingsError if the
    server refuses, ClusterError if it cannot be reached, fails, or answers what the caller cannot read (ValueError)."""
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.rstrip('/')}{path}", data=data, headers=headers)
    try:
        with opener_for(server, _NoRedirects).open(request, timeout=timeout_s) as response:
            yield response
    except urllib.error.HTTPError as error:
        error_type = SettingsError if error.code < 500 else ClusterError
        raise error_type(f"{server} answered {error.code}: {_error_message(error.read())}") from None
    except urllib.error.URLError as error:
        raise ClusterError(f"cannot reach {server} ({error.reason}); does {kind} run there?") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ClusterError(f"{server} did not answer as {kind} does ({reason})") from None


def _error_message(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200] or "nothing"
