"""`lopa scale`: the workers of a running server, over its admin endpoint. Standard library only."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from cluster.command_line.options import check_url
from lopa_ray.errors import ClusterError, SettingsError

TIMEOUT_S = 90.0
"""Longer than the server waits for its groups."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A key is sent to the server that was named and to no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """A redirect is an answer like any other that is not 200."""


def call_workers_endpoint(
    url: str, model: str, num_workers: int | None, api_key: str | None
) -> dict[str, Any]:
    """The status of a model's workers at a server; with `num_workers` that many are asked for first.

    Raises SettingsError if the server refuses, ClusterError if it cannot be reached or fails.
    """
    check_url(url)
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {api_key}"} if api_key else {}
    )
    endpoint = f"{url.rstrip('/')}/admin/models/{urllib.parse.quote(model, safe='')}/workers"
    body = None if num_workers is None else json.dumps({"num_workers": num_workers}).encode()
    request = urllib.request.Request(endpoint, data=body, headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as response:
            status: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        error_type = SettingsError if error.code < 500 else ClusterError
        raise error_type(f"{url} answered {error.code}: {_error_message(error.read())}") from None
    except urllib.error.URLError as error:
        raise ClusterError(f"cannot reach {url} ({error.reason}); does lopa serve run there?") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ClusterError(
            f"{url} did not answer as lopa serve does ({type(error).__name__}: {error})"
        ) from None
    return status


def _error_message(body: bytes) -> str:
    """The message of an error object, or whatever else was answered."""
    text = body.decode("utf-8", "replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200] or "nothing"


def format_status(status: dict[str, Any]) -> list[str]:
    """One line per group, for people."""
    lines = []
    for number, group in enumerate(status["groups"], 1):
        coming = f", {group['coming']} coming" if group["coming"] else ""
        problem = f"; last problem: {group['problem']}" if group["problem"] else ""
        lines.append(
            f"{status['model']} group {number}: {group['workers']} of {group['wanted']} workers{coming}{problem}"
        )
    return lines
