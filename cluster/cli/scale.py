"""`lopa scale`: the workers of a running server, over its admin endpoint. Standard library only."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from lopa_ray.errors import ClusterError, SettingsError

TIMEOUT_S = 90.0
"""Longer than the server waits for its groups."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A key goes to the server that was named and to no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an answer like any other that is not 200."""


def ask_workers(url: str, model: str, num_workers: int | None, key: str | None) -> dict[str, Any]:
    """What the server at `url` says of the workers of a model, after asking for that many if a number is given.

    Raises SettingsError if the server refuses, ClusterError if it cannot be reached or fails.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise SettingsError(f"--url: got {url!r}; allowed: an address like http://127.0.0.1:8000")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    where = f"{url.rstrip('/')}/admin/models/{urllib.parse.quote(model, safe='')}/workers"
    body = None if num_workers is None else json.dumps({"num_workers": num_workers}).encode()
    request = urllib.request.Request(where, data=body, headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as response:
            found: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        kind = SettingsError if error.code < 500 else ClusterError
        raise kind(f"{url} answered {error.code}: {_reason(error.read())}") from None
    except urllib.error.URLError as error:
        raise ClusterError(f"cannot reach {url} ({error.reason}); does lopa serve run there?") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ClusterError(
            f"{url} did not answer as lopa serve does ({type(error).__name__}: {error})"
        ) from None
    return found


def _reason(body: bytes) -> str:
    """The message of an error object, or whatever else was answered."""
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200] or "nothing"


def lines(found: dict[str, Any]) -> list[str]:
    """One per group, for people."""
    said = []
    for number, group in enumerate(found["groups"], 1):
        coming = f", {group['coming']} coming" if group["coming"] else ""
        problem = f"; last problem: {group['problem']}" if group["problem"] else ""
        said.append(
            f"{found['model']} group {number}: {group['workers']} of {group['wanted']} workers{coming}{problem}"
        )
    return said
