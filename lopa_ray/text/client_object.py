"""ClientObject: the base of what clients send. It is strict, every error names the field, and unsupported fields may be
neutral."""

from __future__ import annotations

import difflib
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import tagged_union_schema

from lopa_ray.errors import short_repr
from lopa_ray.text.json_content import levels

TAG_MARK = "|"
"""The tags of unions begin with it, which distinguishes them from the fields of a value."""


MAX_DEPTH = 64  # objects and lists within each other: what walks through them calls itself

MAX_ERRORS = 1000  # to list more takes seconds, in which no other request is served


def is_too_deep(value: Any) -> bool:
    return any(depth > MAX_DEPTH for depth, _ in enumerate(levels(value)))


class ClientObject(BaseModel):
    """An object from a client. Types are not converted, null is the same as not given."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    unsupported_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields of OpenAI or vLLM that are not supported, each with values (besides null) that have no effect. A class
    also has its bases' fields, but none that it declares as a field."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        inherited = [base.unsupported_fields for base in cls.__bases__ if issubclass(base, ClientObject)]
        merged = ChainMap(dict(cls.unsupported_fields), *map(dict, inherited))
        cls.unsupported_fields = {
            name: neutral for name, neutral in merged.items() if name not in cls.model_fields
        }

    @model_validator(mode="before")
    @classmethod
    def _drop_unsupported_fields(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, neutral in cls.unsupported_fields.items():
            given = value.get(name)
            if given is not None and not any(_is_same(given, one) for one in neutral):
                details = {"field": name, "got": short_repr(given)}
                raise PydanticCustomError("unsupported", "is not supported: got {got}; leave it out", details)
        return {name: given for name, given in value.items() if name not in cls.unsupported_fields}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        reference = handler(core)
        schema = handler.resolve_ref_schema(reference)
        for name, neutral in cls.unsupported_fields.items():
            schema.setdefault("properties", {})[name] = {
                "enum": [None, *neutral],
                "description": "Not supported: accepted where it asks for nothing.",
            }
        return reference


class ByType:
    """Annotation of a union: a value's `type` selects the class, each of which declares its types as a Literal."""

    def __init__(self, default: str | None = None, *, allowed: str | None = None) -> None:
        """`default` stands for a missing type, and for unknown types too unless `allowed` has the words for them."""
        self._default, self._allowed = default, allowed

    def __get_pydantic_core_schema__(self, union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schemas = {
            f"{TAG_MARK}{name}": handler.generate_schema(model)
            for model in get_args(union)
            for name in get_args(model.model_fields["type"].annotation)
        }

        def tag(value: Any) -> str:
            given = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
            known = isinstance(given, str) and (self._allowed or f"{TAG_MARK}{given}" in schemas)
            return f"{TAG_MARK}{given if known else self._default}"

        return tagged_union_schema(
            schemas,
            tag,
            custom_error_type="unknown_type" if self._allowed else None,
            custom_error_message=self._allowed,
        )


@dataclass(frozen=True, slots=True)
class FieldError:
    code: str  # invalid_value, or missing_, unknown_ or unsupported_parameter
    message: str  # it names the field
    param: str | None = None  # the path of the field: `messages[0].content`
    location: Sequence[str | int] = ()  # the same as names and indices


def unknown_field_message(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    return f"is no known field; {hint}"


def _is_same(value: Any, neutral: Any) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def first_error(error: ValidationError, model: type[ClientObject]) -> FieldError:
    """The first thing that is wrong with an object of the class `model`."""
    if error.error_count() > MAX_ERRORS:
        message = f"got {error.error_count()} wrong or unknown values; send fields that are documented"
        return FieldError("invalid_value", message)
    detail = error.errors(include_url=False)[0]
    context = detail.get("ctx", {})
    location = [part for part in detail["loc"] if not str(part).startswith(TAG_MARK)]
    location += [context["field"]] if "field" in context else []
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:100]
    error_type, message = detail["type"], detail["msg"]
    if error_type == "missing":
        code, message = "missing_parameter", f"{param} is missing; add it"
    elif error_type == "extra_forbidden":
        at_top = len(location) == 1
        hint = (
            unknown_field_message(param, list(model.model_fields))
            if at_top
            else "is no known field; leave it out"
        )
        code, message = "unknown_parameter", f"{param} {hint}"
    elif error_type in ("unsupported", "unknown"):
        code, message = f"{error_type}_parameter", f"{param} {message}"
    elif error_type == "value_error":
        code, message = "invalid_value", f"{param}: {message.removeprefix('Value error, ')}"
    else:
        problem = f"got {short_repr(detail['input'])}; allowed: {_allowed(message)}"
        code, message = "invalid_value", f"{param}: {problem}"
    return FieldError(code, message, param, location)


def _allowed(message: str) -> str:
    message = re.sub(r"^\w+ should (be|have) ", "", message)
    message = re.sub(r" after validation, not .*$", "", message)
    return re.sub(r"a valid dictionary( or instance of \w+)?$", "an object", message)
