"""Reads request bodies: bytes of bounded length, then one JSON object."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, NoReturn

from cluster.serving.openai.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import Receive

DRAIN = 4
"""A body up to this many times too long is read to its end, so that its sender gets to read the answer."""

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


async def read_body(receive: Receive, declared: str | None, limit: int) -> bytes:
    """A body of at most `limit` bytes; `declared` is its Content-Length.

    Raises ApiError (413) beyond, and ClientGoneError if the rest does not come.
    """
    length, kept = 0, []
    if not _is_beyond(declared, DRAIN * limit):
        async for chunk in _chunks(receive):
            length += len(chunk)
            if length <= limit:
                kept.append(chunk)
            elif length > DRAIN * limit:
                break
        if length <= limit:
            return b"".join(kept)
    got = f"{declared} bytes" if declared else f"more than {limit} bytes"
    raise ApiError(413, f"got a body of {got}; allowed: {limit} bytes; send less", "body_too_large")


def parse_object(body: bytes) -> dict[str, Any]:
    """JSON object → dict. Raises ApiError (400) for anything else, and for what JSON cannot say:
    NaN, infinity, half a surrogate pair."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite)
        if _ESCAPED_SURROGATE.search(body):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not valid UTF-8 (byte {error.start})") from None
    except UnicodeEncodeError:
        raise _invalid(
            "a text has half a surrogate pair (\\ud800 to \\udfff alone), which is no character"
        ) from None
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not valid JSON ({error})") from None
    except RecursionError:
        raise _invalid("the body is nested too deeply") from None
    except ValueError:  # Python reads no integers of more than some thousand digits
        raise _invalid("the body has a number with too many digits") from None
    if not isinstance(value, dict):
        raise _invalid(f"the body is JSON, but a {type(value).__name__}")
    return value


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _is_beyond(declared: str | None, limit: int) -> bool:
    return declared is not None and declared.isdecimal() and (len(declared) > 18 or int(declared) > limit)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _invalid(f"the number {text[:40]} is too large")
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise _invalid(f"{text} is no JSON number")


def _invalid(message: str) -> ApiError:
    return ApiError(400, f"{message}; send one JSON object in UTF-8", "invalid_json")
