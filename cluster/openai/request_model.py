"""RequestModel: the base of requests, and the types of their fields."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeAlias

from pydantic import AfterValidator, ValidationError

from cluster.openai.errors import ApiError
from lopa_ray.text.client_object import MAX_DEPTH, ClientObject, first_error, is_too_deep

MAX_INT = 2**31 - 1
"""No count, size or token id is larger."""


def _check_depth(value: dict[str, Any]) -> dict[str, Any]:
    if is_too_deep(value):
        raise ValueError(f"it is nested too deeply; allowed: {MAX_DEPTH} levels; simplify it")
    return value


JsonObject: TypeAlias = Annotated[dict[str, Any], AfterValidator(_check_depth)]
"""Any object."""


class RequestModel(ClientObject):
    """An object in a request."""

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Self:
        """Raises ApiError (400) for the first thing that is wrong."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            wrong = first_error(error, cls)
            raise ApiError(400, wrong.message, wrong.code, param=wrong.param) from None
