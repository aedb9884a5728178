"""What routes check first: an API key, a model that is served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPBearer
from pydantic import SecretStr

from cluster.openai.errors import ApiError, short_repr
from cluster.serving.http.auth import check_api_key

_BEARER = HTTPBearer(auto_error=False)
"""Only describes the keys in the OpenAPI document."""


def require_api_key(keys: Sequence[SecretStr]) -> Callable[..., Any]:
    """A dependency of FastAPI's, which refuses requests without one of the keys; see `check_api_key`."""

    async def check(request: Request, _: Annotated[Any, Security(_BEARER)]) -> None:
        check_api_key(request.headers.get("authorization"), keys)

    return check


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
    """The model itself, or the only model of the server if the request names none.

    Raises ApiError: 404 for a model that the server does not have, 400 if the request has to name one.
    """
    if model is None:
        if len(models) > 1:
            message = f"model is missing; add one of the served models: {', '.join(models)}"
            raise ApiError(400, message, "missing_parameter", param="model")
        return models[0]
    check_model(model, models)
    return model
