"""Reads compressed request bodies, up to a bound on what they become."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from cluster.openai.errors import ApiError, short_repr

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_OPEN: Mapping[str, Callable[[io.BytesIO], Any]] = {"gzip": gzip.open, "x-gzip": gzip.open, "zstd": zstd.open}
_IDENTITY = ("", "identity")


def decompressed(body: bytes, headers: Mapping[str, str], limit: int) -> bytes:
    """A body without its Content-Encoding, which is gzip or zstd, or none. No more than `limit` bytes are made of it.
    Raises ApiError: 413 beyond, 415 for another encoding or several, and 400 for a body that is not in its encoding."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in _IDENTITY:
        return body
    if encoding not in _OPEN:
        message = f"got the Content-Encoding {short_repr(encoding)}; allowed: gzip, zstd; send the body in one of them"
        raise ApiError(415, message, "unsupported_content_encoding")
    try:
        with _OPEN[encoding](io.BytesIO(body)) as reader:
            plain: bytes = reader.read(limit + 1)
    except (OSError, EOFError, ValueError, zlib.error, zstd.ZstdError) as error:
        raise ApiError(400, f"the body cannot be read as {encoding} ({error})", "invalid_value") from None
    if len(plain) > limit:
        message = f"got a body that decodes to more than {limit} bytes; allowed: {limit}; send less"
        raise ApiError(413, message, "body_too_large")
    return plain
