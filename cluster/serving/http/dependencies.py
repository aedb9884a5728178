"""What routes check first: an API key, a model that is served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Request, Security
from fastapi.security import HTTPBearer
from pydantic import SecretStr

from cluster.serving.http.auth import check_api_key
from cluster.serving.openai.errors import ApiError, short_repr

_BEARER = HTTPBearer(auto_error=False)
"""Only describes the keys in the OpenAPI document."""


def require_api_key(keys: Sequence[SecretStr]) -> Callable[..., Any]:
    """A dependency of FastAPI's, which refuses requests without one of the keys; see `check_api_key`."""

    async def check(request: Request, _: Annotated[Any, Security(_BEARER)]) -> None:
        check_api_key(request.headers.get("authorization"), keys)

    return check


def check_model(model: str, models: Sequence[str]) -> None:
    """Raises ApiError (404) unless the model is one of those that are served."""
    if model not in models:
        raise ApiError(
            404,
            f"got the model {short_repr(model)}; served: {', '.join(models)}; choose one of these",
            "model_not_found",
            param="model",
        )
