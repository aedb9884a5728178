"""Requests to the routes of decisions, in the shapes of both clients."""

from __future__ import annotations

from typing import Any

import httpx

from support.fake_backend import MODEL

DECISIONS, SYSTEM_ONE = "/v1/decisions", "/v1/systemone"
IS_URGENT = {"type": "predicate", "instructions": "Is it urgent?", "name": "urgent"}
NOUL = {"type": "noul", "instructions": "?"}
TYPESAFE = {"X-TypeSafe-SDK": "typesafe-sdk/0.7.5"}


def decide(client: httpx.Client, *questions: Any, **fields: Any) -> httpx.Response:
    """Ask in OpenAI's shape."""
    body = {"model": MODEL, "input": "I was charged twice.", "questions": list(questions), **fields}
    return client.post(DECISIONS, json=body)


def ask(client: httpx.Client, questions: Any, **fields: Any) -> httpx.Response:
    """Ask in TypeSafe's shape."""
    body = {"model": MODEL, "state": "I was charged twice.", "questions": questions, **fields}
    return client.post(SYSTEM_ONE, json=body, headers=TYPESAFE)


def deep(levels: int) -> Any:
    """So many objects within each other."""
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value
