"""Compressed bodies: what they become, within bounds."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import pyarrow
import pytest

from cluster.openai.errors import ApiError
from cluster.serving.http.content_encoding import decompressed

LIMIT = 1000


def zstd(body: bytes) -> bytes:
    compressed: bytes = pyarrow.compress(body, codec="zstd", asbytes=True)
    return compressed


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd}


@pytest.mark.parametrize("encoding", COMPRESSORS)
def test_a_body_is_what_was_compressed(encoding: str) -> None:
    body = b'{"a": "b"}' * 90
    headers = {"content-encoding": encoding.upper()}
    assert decompressed(COMPRESSORS[encoding](body), headers, LIMIT) == body
    assert decompressed(COMPRESSORS[encoding](b"x" * LIMIT), headers, LIMIT) == b"x" * LIMIT


def test_a_plain_body_stays_as_it_is() -> None:
    for headers in ({}, {"content-encoding": "identity"}):
        assert decompressed(b"{}", headers, LIMIT) == b"{}"


@pytest.mark.medium
@pytest.mark.parametrize("encoding", COMPRESSORS)
@pytest.mark.parametrize("size", [LIMIT + 1, 2**27])
def test_no_more_than_the_limit_is_made_of_it(encoding: str, size: int) -> None:
    body = COMPRESSORS[encoding](b"\0" * size)
    with pytest.raises(ApiError) as raised:
        decompressed(body, {"content-encoding": encoding}, LIMIT)
    assert (raised.value.status, raised.value.code) == (413, "body_too_large")


@pytest.mark.parametrize("encoding", COMPRESSORS)
@pytest.mark.parametrize("damage", [lambda body: body[:-4], lambda body: b"{}" + body, lambda body: body[:3]])
def test_a_damaged_body_is_refused(encoding: str, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ApiError) as raised:
        decompressed(damage(COMPRESSORS[encoding](b"some text" * 20)), {"content-encoding": encoding}, LIMIT)
    assert raised.value.status == 400 and encoding in raised.value.message


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, zstd", "x"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(ApiError) as raised:
        decompressed(b"{}", {"content-encoding": encoding}, LIMIT)
    assert raised.value.status == 415 and "gzip, zstd" in raised.value.message
