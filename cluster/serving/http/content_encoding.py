"""Reads compressed request bodies, up to a bound on what they become."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import BinaryIO, cast

from cluster.openai.errors import ApiError, short_repr

ZSTD_MODULES = ("compression.zstd", "backports.zstd")
"""Python's own module from 3.14 on, and the same for older ones. Without either of them pyarrow reads zstd."""

_IDENTITY = ("", "identity")


def decompressed(body: bytes, headers: Mapping[str, str], limit: int) -> bytes:
    """A body without its Content-Encoding, which is gzip or zstd, or none.

    No more than `limit` bytes are made of it. Raises ApiError: 413 beyond, 415 for another encoding or several, and 400
    for a body that is not in its encoding.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in _IDENTITY:
        return body
    readers: dict[str, Callable[[bytes], BinaryIO]] = {
        "gzip": _gzip_reader,
        "x-gzip": _gzip_reader,
        "zstd": _zstd_reader,
    }
    if encoding not in readers:
        message = f"got the Content-Encoding {short_repr(encoding)}; allowed: gzip, zstd; send the body in one of them"
        raise ApiError(415, message, "unsupported_content_encoding")
    try:
        with readers[encoding](body) as reader:
            plain = reader.read(limit + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ApiError(400, f"the body cannot be read as {encoding} ({error})", "invalid_value") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # a class of a module that may be missing
            raise
        raise ApiError(400, f"the body cannot be read as {encoding} ({error})", "invalid_value") from None
    if len(plain) > limit:
        message = (
            f"got a body of more than {limit} bytes behind its Content-Encoding; allowed: {limit}; send less"
        )
        raise ApiError(413, message, "body_too_large")
    return plain


def _gzip_reader(body: bytes) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=io.BytesIO(body)))


def _zstd_reader(body: bytes) -> BinaryIO:
    for name in ZSTD_MODULES:
        try:
            return cast(BinaryIO, import_module(name).ZstdFile(io.BytesIO(body)))
        except ModuleNotFoundError:
            continue
    try:
        pyarrow = import_module("pyarrow")
    except ModuleNotFoundError:
        message = "got a body in zstd, for which this server lacks the package backports.zstd; send gzip, or plain JSON"
        raise ApiError(415, message, "unsupported_content_encoding") from None
    return cast(BinaryIO, pyarrow.CompressedInputStream(pyarrow.BufferReader(body), "zstd"))
