"""The keywords of JSON schemas that say something about a value by themselves, and checks of what they are given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from lopa_ray.constraints.automaton_builder import TooManyStatesError
from lopa_ray.constraints.schema_facts import (
    NO_TYPES,
    TYPES,
    Bound,
    Facts,
    Items,
    Members,
    Part,
    Parts,
    type_of,
)
from lopa_ray.constraints.string_formats import STRING_FORMATS
from lopa_ray.constraints.string_pattern import pattern_automaton
from lopa_ray.errors import SettingsError

NAMED_TYPES: Mapping[str, frozenset[str]] = {
    **{name: frozenset({name}) for name in ("object", "array", "string", "integer", "boolean", "null")},
    "number": frozenset({"integer", "fraction"}),
}

UNSUPPORTED = frozenset(
    {"$dynamicRef", "$recursiveRef", "disallow", "divisibleBy", "extends", "maxContains", "unevaluatedItems"}
)
"""Keywords that limit values in some draft of JSON Schema, and are not kept. What is in no draft limits nothing."""

MAX_PATTERNS = 200
"""Maximum number of different patterns in a schema. Each is compiled by itself."""

MAX_BOUND = 10**15
"""Largest magnitude of a bound of numbers."""


def schema_error(path: str, message: str) -> SettingsError:
    """An error whose message gives the place in the schema."""
    where = f" at {path.lstrip('.')}" if path else ""
    return SettingsError(f"JSON schema{where}: {message}")


class KeywordReader:
    """Reads the keywords of one schema."""

    def __init__(self) -> None:
        self._patterns: set[str] = set()
        self._known: dict[object, Facts] = {}

    def facts(self, part: Part) -> Facts:
        """What the keywords of a schema say that neither refer to others nor combine them.

        Raises SettingsError for a keyword that is not supported, and for values that keywords do not have.
        """
        if part.key() not in self._known:
            self._known[part.key()] = self._facts(part)
        return self._known[part.key()]

    def _facts(self, part: Part) -> Facts:
        schema, path = part.schema, part.path
        unsupported = sorted(UNSUPPORTED & schema.keys())
        if unsupported:
            raise schema_error(path, f"keyword {', '.join(unsupported)} is not supported; leave it out")
        lower, upper = _bounds(schema, path)
        min_items, max_items = _length_bounds(schema, "minItems", "maxItems", path)
        min_length, max_length = _length_bounds(schema, "minLength", "maxLength", path)
        min_properties, max_properties = _length_bounds(schema, "minProperties", "maxProperties", path)
        contains = (_sub(part, "contains"),) if "contains" in schema else ()
        if schema.get("minContains", 1) != 1:
            raise schema_error(path, f"minContains: got {schema['minContains']!r}; allowed: 1")
        stated = Facts(
            types=_types(schema, path),
            values=_values(schema, path),
            members=_members(part),
            required=_required(schema, path),
            names=(_sub(part, "propertyNames"),) if "propertyNames" in schema else (),
            min_properties=min_properties,
            max_properties=max_properties,
            items=_items(part),
            contains=contains,
            min_items=max(min_items, len(contains)),
            max_items=max_items,
            unique=_flag(schema, "uniqueItems", path),
            patterns=self._pattern(schema, path),
            formats=_formats(schema, path),
            min_length=min_length,
            max_length=max_length,
            lower=lower,
            upper=upper,
            multiples=_multiples(schema, path),
            path=path,
        )
        return stated.consistent()

    def _pattern(self, schema: dict[str, Any], path: str) -> tuple[tuple[str, bool], ...]:
        if "pattern" not in schema:
            return ()
        self.check_pattern(schema["pattern"], path)
        return ((schema["pattern"], True),)

    def check_pattern(self, pattern: Any, path: str) -> None:
        """Raises SettingsError for a pattern that is not supported, and for too many patterns."""
        if not isinstance(pattern, str):
            raise schema_error(path, f"pattern: got {pattern!r}; allowed: a regular expression")
        if pattern in self._patterns:
            return
        if len(self._patterns) == MAX_PATTERNS:
            raise schema_error(
                path,
                f"got more than {MAX_PATTERNS} different patterns; allowed: {MAX_PATTERNS}; leave some out",
            )
        try:
            pattern_automaton(pattern)
        except SettingsError as error:
            raise schema_error(path, f"pattern: got {pattern!r}: {error}") from None
        except TooManyStatesError:
            raise schema_error(
                path, f"pattern: got {pattern!r}, which is too large; use a simpler one"
            ) from None
        self._patterns.add(pattern)


def listed_schemas(part: Part, name: str) -> Parts:
    """The schemas that the keyword `name` lists. Raises SettingsError if there is not at least one."""
    parts = part.schema[name]
    if not isinstance(parts, list) or not parts:
        raise schema_error(part.path, f"{name}: got {parts!r}; allowed: a list of schemas")
    return tuple(Part(schema, f"{part.path}.{name}[{at}]", part.open_refs) for at, schema in enumerate(parts))


def names_of(value: Any, name: str, path: str) -> tuple[str, ...]:
    """A list of names of members. Raises SettingsError for anything else."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise schema_error(path, f"{name}: got {value!r}; allowed: a list of names")
    return tuple(dict.fromkeys(value))


def schemas_by_name(part: Part, name: str) -> dict[str, Part]:
    """The schemas that the keyword `name` has by name. Raises SettingsError for anything else."""
    value = part.schema.get(name, {})
    if not isinstance(value, dict):
        raise schema_error(part.path, f"{name}: got {value!r}; allowed: an object of schemas")
    prefix = part.path if name == "properties" else f"{part.path}.{name}"
    return {key: Part(schema, f"{prefix}.{key}", part.open_refs) for key, schema in value.items()}


def _sub(part: Part, name: str) -> Part:
    return Part(part.schema[name], f"{part.path}.{name}", part.open_refs)


def _types(schema: dict[str, Any], path: str) -> frozenset[str]:
    if "type" not in schema:
        return TYPES
    given = schema["type"]
    types = NO_TYPES
    for name in given if isinstance(given, list) else [given]:
        if not isinstance(name, str) or name not in NAMED_TYPES:
            raise schema_error(path, f"type: got {name!r}; allowed: {', '.join(NAMED_TYPES)}")
        types |= NAMED_TYPES[name]
    return types


def _values(schema: dict[str, Any], path: str) -> tuple[Any, ...] | None:
    if "enum" not in schema:
        return (schema["const"],) if "const" in schema else None
    if not isinstance(schema["enum"], list):
        raise schema_error(path, f"enum: got {schema['enum']!r}; allowed: a list")
    values = Facts(values=tuple(schema["enum"]))
    return values.merged(Facts(values=(schema["const"],))).values if "const" in schema else values.values


def _members(part: Part) -> tuple[Members, ...]:
    if not {"properties", "patternProperties", "additionalProperties"} & part.schema.keys():
        return ()
    additional = _sub(part, "additionalProperties") if "additionalProperties" in part.schema else None
    patterns = tuple(schemas_by_name(part, "patternProperties").items())
    return (Members(schemas_by_name(part, "properties"), patterns, additional),)


def _required(schema: dict[str, Any], path: str) -> tuple[str, ...]:
    """The names that have to be there; in draft 3 the properties themselves say so."""
    given, properties = schema.get("required", []), schema.get("properties")
    listed = () if isinstance(given, bool) else names_of(given, "required", path)
    values = properties.items() if isinstance(properties, dict) else ()
    own = [name for name, value in values if isinstance(value, dict) and value.get("required") is True]
    return tuple(dict.fromkeys([*listed, *own]))


def _items(part: Part) -> tuple[Items, ...]:
    schema = part.schema
    tuples = (
        "prefixItems"
        if "prefixItems" in schema
        else "items"
        if isinstance(schema.get("items"), list)
        else None
    )
    prefix = listed_schemas(part, tuples) if tuples is not None and schema[tuples] != [] else ()
    behind = "additionalItems" if tuples == "items" else "items"
    rest = _sub(part, behind) if behind in schema else None
    return (Items(prefix, rest),) if prefix or rest is not None else ()


def _flag(schema: dict[str, Any], name: str, path: str) -> bool:
    if not isinstance(schema.get(name, False), bool):
        raise schema_error(path, f"{name}: got {schema[name]!r}; allowed: true, false")
    return bool(schema.get(name, False))


def _formats(schema: dict[str, Any], path: str) -> tuple[str, ...]:
    name = schema.get("format", "")
    if not isinstance(name, str):
        raise schema_error(path, f"format: got {name!r}; allowed: a name")
    return (name,) if name in STRING_FORMATS else ()


def _length_bounds(schema: dict[str, Any], minimum: str, maximum: str, path: str) -> tuple[int, int | None]:
    """The values of two keywords for the minimum and the maximum length. A maximum of None means unbounded."""
    for name in (minimum, maximum):
        value = schema.get(name, 0)
        if type_of(value) != "integer" or value < 0:
            raise schema_error(path, f"{name}: got {value!r}; allowed: a whole number from 0 on")
    least, most = int(schema.get(minimum, 0)), int(schema[maximum]) if maximum in schema else None
    if most is not None and most < least:
        raise schema_error(path, f"{maximum} ({most}) is below {minimum} ({least}); correct them")
    return least, most


def _bounds(schema: dict[str, Any], path: str) -> tuple[Bound, Bound]:
    """The lower and the upper bound of numbers, also in draft 4, whose exclusive bounds are flags."""
    found: dict[str, list[tuple[Decimal, bool]]] = {"inimum": [], "aximum": []}
    for end, bounds in found.items():
        plain, exclusive = f"m{end}", f"exclusiveM{end}"
        flag = schema.get(exclusive)
        for name in (plain, exclusive):
            value = schema.get(name)
            if name not in schema or (name == exclusive and isinstance(value, bool)):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise schema_error(path, f"{name}: got {value!r}; allowed: a number")
            if abs(value) > MAX_BOUND:
                if (end == "inimum") == (value > 0):
                    raise schema_error(
                        path, f"{name}: got {value!r}; allowed: a number up to {MAX_BOUND:.0e}"
                    )
                value = math.copysign(MAX_BOUND, value)  # answers have no numbers beyond it
            bounds.append((Decimal(repr(value)), name == exclusive or flag is True))
    lower = max(found["inimum"], default=None)
    return lower, min(found["aximum"], key=lambda bound: (bound[0], not bound[1]), default=None)


def _multiples(schema: dict[str, Any], path: str) -> tuple[Decimal, ...]:
    value = schema.get("multipleOf", 1.5)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise schema_error(path, f"multipleOf: got {value!r}; allowed: a number above 0")
    return (Decimal(repr(value)),) if "multipleOf" in schema else ()
