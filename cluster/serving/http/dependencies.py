"""What routes ask first: an API key, a known model. No `annotations` from the future, as in `v1.py`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import SecretStr

from cluster.serving.http.auth import check_key
from cluster.serving.openai.errors import ApiError, show


def key_check(keys: Sequence[SecretStr]) -> Callable[..., Any]:
    """A dependency of FastAPI's, which refuses requests without one of the keys; see `check_key`."""
    from fastapi import Request, Security
    from fastapi.security import HTTPBearer

    bearer = HTTPBearer(auto_error=False)

    async def need_key(request: Request, _: Annotated[Any, Security(bearer)]) -> None:
        check_key(request.headers.get("authorization"), keys)

    return need_key


def check_model(model: str, models: Sequence[str]) -> None:
    """Raises ApiError (404) unless the model is one of those that are served."""
    if model not in models:
        raise ApiError(
            404,
            f"got the model {show(model)}; served: {', '.join(models)}; choose one of these",
            "model_not_found",
            param="model",
        )
