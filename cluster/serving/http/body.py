"""Reads request bodies: bytes of bounded length, then one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from cluster.openai.errors import ApiError, short_repr
from cluster.serving.http.content_encoding import decompressed
from lopa_ray.text_input import parse_json

JSON, CURL_DEFAULT = "application/json", "application/x-www-form-urlencoded"
SHOWN_CHARS = 40
DRAIN_FACTOR = 4  # up to this many limits a body is read, so that its sender reads the response


async def read_json_object(request: Request, limit: int, *, optional: bool = False) -> dict[str, Any]:
    """A request's body, compressed or not; `optional`: {} for none. Raises ApiError: 400, 413 and 415."""
    check_content_type(request.headers)
    body = decompressed(await read_body(request, limit), request.headers, limit)
    try:
        value = parse_json(body) if body or not optional else {}
    except ValueError as error:
        raise _invalid(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _invalid(f"the body must be a JSON object; got {json.dumps(value)[:SHOWN_CHARS]}")
    return value


def check_content_type(headers: Mapping[str, str]) -> None:
    """Raises ApiError (415) for a body that is declared to be anything but JSON. curl declares a form by default; a
    browser may send forms to other sites, so a form with a browser's headers is refused."""
    content_type = headers.get("content-type", "")
    media_type = content_type.partition(";")[0].strip().lower()
    is_from_browser = "origin" in headers or "sec-fetch-site" in headers
    if media_type not in ("", JSON) and (media_type != CURL_DEFAULT or is_from_browser):
        message = f"got the Content-Type {short_repr(content_type)}; allowed: {JSON}; send the body as JSON"
        raise ApiError(415, message, "unsupported_media_type")


async def read_body(request: Request, limit: int) -> bytes:
    """A body of at most `limit` bytes. Raises ApiError (413) beyond, and ClientDisconnect if the rest does not come."""
    content_length = request.headers.get("content-length")
    length, chunks = 0, []
    if not _exceeds(content_length, DRAIN_FACTOR * limit):
        async for chunk in request.stream():
            length += len(chunk)
            if length <= limit:
                chunks.append(chunk)
            elif length > DRAIN_FACTOR * limit:
                break
        if length <= limit:
            return b"".join(chunks)
    got = f"{content_length} bytes" if content_length else f"more than {limit} bytes"
    raise ApiError(413, f"got a body of {got}; allowed: {limit} bytes; send less", "body_too_large")


def _exceeds(content_length: str | None, limit: int) -> bool:
    if content_length is None or not content_length.isdecimal():
        return False
    # Python refuses to read integers of some thousand digits.
    return len(content_length) > 18 or int(content_length) > limit


def _invalid(message: str) -> ApiError:
    return ApiError(400, f"{message}; send one JSON object in UTF-8", "invalid_json")
