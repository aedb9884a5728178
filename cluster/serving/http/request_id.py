"""The id that a client gives a request, in its header X-Request-ID."""

from __future__ import annotations

import re

from starlette.types import Scope

HEADER = b"x-request-id"

_VALID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


def given_request_id(scope: Scope) -> str | None:
    """The id in a request's header; None if the request has no such header, a header that is not valid, or two."""
    values = [value for name, value in scope["headers"] if name == HEADER]
    return values[0].decode() if len(values) == 1 and _VALID.fullmatch(values[0]) else None
