"""The first checks of routes: an API key, the client, a model that is served."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPBearer
from pydantic import SecretStr
from starlette.types import Scope

from cluster.openai.errors import ApiError, short_repr

_BEARER = HTTPBearer(auto_error=False)  # only describes the keys in the OpenAPI document


def client_of(scope: Scope) -> str:
    """Who sent a request: `key N`, the Nth of the configured keys, or `address A`. It never has a key itself."""
    named: str | None = scope.get("lopa.client")
    return named or f"address {(scope.get('client') or ('unknown',))[0]}"


def require_api_key(keys: Sequence[SecretStr]) -> Callable[..., Any]:
    """A dependency of FastAPI's. Raises ApiError (401), after the same time for every wrong key."""

    async def check(request: Request, _: Annotated[Any, Security(_BEARER)]) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized("got no API key; send one as 'Authorization: Bearer KEY'")
        digest = sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        # A list, not a generator: every key is compared, whichever matches.
        matches = [
            hmac.compare_digest(digest, sha256(key.get_secret_value().encode()).digest()) for key in keys
        ]
        if any(matches):
            request.scope["lopa.client"] = f"key {matches.index(True) + 1}"
        else:
            raise _unauthorized(
                "got an API key that is not valid here; ask the operator of this server for one"
            )

    return check


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def check_model(model: str, models: Sequence[str]) -> None:
    """Raises ApiError (404) unless the server has this model."""
    if model not in models:
        raise ApiError(
            404,
            f"got the model {short_repr(model)}; served: {', '.join(models)}; choose one of these",
            "model_not_found",
            param="model",
        )


def choose_model(model: str | None, models: Sequence[str]) -> str:
    """The model itself, or the only model of the server if the request names none. Raises ApiError: 404 for a model
    that the server does not have, 400 if the request has to name one."""
    if model is None:
        if len(models) > 1:
            message = f"model is missing; add one of the served models: {', '.join(models)}"
            raise ApiError(400, message, "missing_parameter", param="model")
        return models[0]
    check_model(model, models)
    return model
