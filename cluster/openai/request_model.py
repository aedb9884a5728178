"""RequestModel: the base of requests, and fields that several have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from cluster.openai.errors import ApiError, short_repr
from lopa_ray.text.client_object import MAX_DEPTH, ClientObject, first_error, is_too_deep


def _check_depth(value: dict[str, Any]) -> dict[str, Any]:
    if is_too_deep(value):
        raise ValueError(f"it is nested too deeply; allowed: {MAX_DEPTH} levels; simplify it")
    return value


JsonObject: TypeAlias = Annotated[dict[str, Any], AfterValidator(_check_depth)]
UNUSED: Any = Field(default=None, description="Accepted, and not used.")


def or_text(items: str, as_item: Callable[[str], Any], schema: Any) -> BeforeValidator:
    """A validator of a list for which a text may stand. `schema` describes what may be given."""

    def as_list(value: Any) -> Any:
        if not isinstance(value, str | list):
            raise ValueError(f"got {short_repr(value)}; allowed: text, or a list of {items}")
        return [as_item(value)] if isinstance(value, str) else value

    return BeforeValidator(as_list, json_schema_input_type=schema)


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


class ModelRequest(RequestModel):
    """A request to a model."""

    model: str | None = None
    """A model that is served; /v1/models lists them. May be left out if only one is served."""
