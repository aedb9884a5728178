"""`lopa scale`: the workers of a running server, over its admin endpoint."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

from cluster.cli.server_request import open_response
from cluster.command_line.options import check_url

TIMEOUT_S = 90.0  # longer than the server waits for its groups


def call_workers_endpoint(
    url: str, model: str, num_workers: int | None, api_key: str | None
) -> dict[str, Any]:
    """The status of a model's workers; with `num_workers` that many are asked for first. See `open_response`."""
    check_url(url)
    path = f"/admin/models/{urllib.parse.quote(model, safe='')}/workers"
    body = None if num_workers is None else {"num_workers": num_workers}
    with open_response(url, path, api_key=api_key, body=body, timeout_s=TIMEOUT_S) as response:
        status: dict[str, Any] = json.load(response)
    return status


def format_status(status: dict[str, Any]) -> list[str]:
    lines = []
    for number, group in enumerate(status["groups"], 1):
        coming = f", {group['coming']} coming" if group["coming"] else ""
        problem = f"; last problem: {group['problem']}" if group["problem"] else ""
        workers = f"{group['workers']} of {group['wanted']} workers"
        lines.append(f"{status['model']} group {number}: {workers}{coming}{problem}")
    return lines
