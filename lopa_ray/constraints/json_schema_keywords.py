"""The supported keywords of JSON schemas, and checks of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lopa_ray.errors import SettingsError

ANNOTATIONS = {
    "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description", "example",
    "examples", "readOnly", "title", "writeOnly",
}  # fmt: skip

BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}

KEYWORDS: Mapping[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": BOUNDS,
    "number": set(),
    "boolean": set(),
    "null": set(),
}
"""The keywords that each type supports."""


def check_keywords(schema: dict[str, Any], allowed: set[str], path: str) -> None:
    """Raises SettingsError for keywords that are neither `allowed` nor annotations."""
    unknown = sorted(schema.keys() - allowed - ANNOTATIONS)
    if unknown:
        with_others = "; ".join(sorted(allowed)) or "nothing but annotations"
        raise schema_error(
            path,
            f"keyword {', '.join(unknown)} is not supported here; supported: {with_others}: leave it out",
        )


def implied_type(schema: dict[str, Any]) -> str | None:
    """The type to which the keywords of a schema without `type` belong; None if it has none of them."""
    return next((name for name, keywords in KEYWORDS.items() if keywords & schema.keys()), None)


def listed_types(given: Any, path: str) -> list[str]:
    """The types that the keyword `type` lists. Raises SettingsError for a type that JSON does not have."""
    types: list[Any] = given if isinstance(given, list) else [given]
    for name in types:
        if not isinstance(name, str) or name not in KEYWORDS:
            raise schema_error(path, f"type: got {name!r}; allowed: {', '.join(KEYWORDS)}")
    return types


def has_type(value: Any, name: str) -> bool:
    """Whether a value has the JSON type of that name."""
    types: dict[str, tuple[type, ...]] = {
        "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
        "boolean": (bool,), "null": (type(None),),
    }  # fmt: skip
    return type(value) in types.get(name, ())


def listed_schemas(schema: dict[str, Any], name: str, path: str) -> list[Any]:
    """The schemas that the keyword `name` lists. Raises SettingsError if there is not at least one."""
    parts = schema[name]
    if not isinstance(parts, list) or not parts:
        raise schema_error(path, f"{name}: got {parts!r}; allowed: a list of schemas")
    return parts


def length_bounds(schema: dict[str, Any], minimum: str, maximum: str, path: str) -> tuple[int, int | None]:
    """The values of two keywords for the minimum and the maximum length. A maximum of None means unbounded.

    Raises SettingsError for values that are not whole numbers from 0 on, and for a maximum below the minimum.
    """
    for name in (minimum, maximum):
        if name in schema and (type(schema[name]) is not int or schema[name] < 0):
            raise schema_error(path, f"{name}: got {schema[name]!r}; allowed: a whole number from 0 on")
    if maximum in schema and schema[maximum] < schema.get(minimum, 0):
        raise schema_error(
            path, f"{maximum} ({schema[maximum]}) is below {minimum} ({schema[minimum]}); correct them"
        )
    return schema.get(minimum, 0), schema.get(maximum)


def schema_error(path: str, message: str) -> SettingsError:
    """An error whose message gives the place in the schema."""
    where = f" at {path.lstrip('.')}" if path else ""
    return SettingsError(f"JSON schema{where}: {message}")
