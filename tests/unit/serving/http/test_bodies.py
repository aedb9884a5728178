"""Bodies that are no request: broken, too long, nested too deeply."""

from __future__ import annotations

import json

import httpx
import pytest

from support.fake_backend import CHAT, MODEL, TEXT, Server, error_of

HTTP_SETTINGS = {"max_body_bytes": 30_000}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"criteria": {"a": 1, "b": 2, "a": 3}}', "the name 'a' is twice in one object"),
        (b'"\xff"', "not valid UTF-8"),
        ("{}".encode("utf-16"), "its encoding is UTF-16"),
        ("{}".encode("utf-32-le"), "its encoding is UTF-32"),
        (b"[1]", "must be a JSON object; got [1]"),
        (b"null", "must be a JSON object; got null"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": 1e999}', "too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"a": ' + b"[" * 12_000 + b"]" * 12_000 + b"}", "nested too deeply"),
        (rb'{"prompt": "\ud800 alone"}', "surrogate"),
        (rb'{"\udfff": "alone"}', "surrogate"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(client: httpx.Client, body: bytes, said: str) -> None:
    error = error_of(client.post(TEXT, content=body), 400)
    assert said in error.message
    assert error.code == "invalid_json" and len(error.message) < 1000


@pytest.mark.parametrize("field", ["tools", "messages", "lopa", "metadata", "x"])
def test_what_is_nested_as_deeply_as_json_can_be_is_refused(client: httpx.Client, field: str) -> None:
    for depth in (200, 600, 900, 950, 1000):
        for front, back in (("[", "]"), ('{"decoder":', "}")):
            value = front * depth + "1" + back * depth
            content = f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "a"}}], "{field}": {value}}}'
            error_of(client.post(CHAT, content=content), 400)


def test_a_byte_order_mark_is_no_part_of_a_body(client: httpx.Client) -> None:
    body = json.dumps({"model": MODEL, "prompt": "hi"}).encode()
    assert client.post(TEXT, content=b"\xef\xbb\xbf" + body).status_code == 200


def test_a_surrogate_pair_is_a_character(server: Server, client: httpx.Client) -> None:
    body = json.dumps({"model": MODEL, "prompt": "🙂"}).encode()
    assert b"\\ud83d" in body
    assert client.post(TEXT, content=body).status_code == 200
    assert server.backend.requests[-1][1].prompts == ("🙂",)


@pytest.mark.parametrize("size", [30_001, 2_000_000])
@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_long_is_refused(client: httpx.Client, size: int, declared: bool) -> None:
    chunks = (b" " * min(10_000, size - at) for at in range(0, size, 10_000))
    response = client.post(TEXT, content=b" " * size if declared else chunks)
    assert error_of(response, 413).code == "body_too_large"


def test_the_longest_body_is_taken(client: httpx.Client) -> None:
    body = json.dumps({"model": MODEL, "prompt": "a", "user": ""})
    full = body.replace('"user": ""', f'"user": "{"u" * (30_000 - len(body))}"')
    assert len(full) == 30_000
    assert client.post(TEXT, content=full).status_code == 200
