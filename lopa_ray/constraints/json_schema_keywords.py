"""The keywords of JSON schemas: the values that each may have, and the facts that it states by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from lopa_ray.constraints.automaton_builder import TooManyStatesError
from lopa_ray.constraints.schema_facts import (
    TYPES,
    Facts,
    Items,
    Members,
    Part,
    Size,
    common_values,
    smaller_bound,
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
"""Keywords that limit values in some draft of JSON Schema, and are not kept. Other unknown keywords limit nothing."""

MAX_PATTERNS = 200  # in a schema: each is compiled by itself
MAX_BOUND = 10**15  # the largest magnitude of a bound of numbers


def schema_error(path: str, message: str) -> SettingsError:
    """An error whose message gives the place in the schema."""
    where = f" at {path.lstrip('.')}" if path else ""
    return SettingsError(f"JSON schema{where}: {message}")


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _are_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return all(isinstance(name, str) and name in NAMED_TYPES for name in names)


_ALLOWED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("type", _are_types, ", ".join(NAMED_TYPES)),
    ("enum", lambda value: isinstance(value, list), "a list"),
    ("required", lambda value: isinstance(value, bool) or _are_names(value), "a list of names"),
    ("uniqueItems", _is_flag, "true, false"),
    ("unevaluatedProperties", lambda value: _is_flag(value) or value == {}, "true, false"),
    ("pattern", lambda value: isinstance(value, str), "a regular expression"),
    ("format", lambda value: isinstance(value, str), "a name"),
    ("minContains", lambda value: value == 1, "1"),
    ("multipleOf", lambda value: _is_number(value) and value > 0, "a number above 0"),
    ("minimum maximum", _is_number, "a number"),
    ("exclusiveMinimum exclusiveMaximum", lambda value: _is_number(value) or _is_flag(value), "a number"),
    (
        "minLength maxLength minItems maxItems minProperties maxProperties",
        lambda value: type_of(value) == "integer" and value >= 0,
        "a whole number from 0 on",
    ),
    ("allOf anyOf oneOf", lambda value: isinstance(value, list) and value != [], "a list of schemas"),
    ("prefixItems", lambda value: isinstance(value, list), "a list of schemas"),
    ("properties patternProperties", lambda value: isinstance(value, dict), "an object of schemas"),
    (
        "dependentRequired dependentSchemas dependencies",
        lambda value: (
            isinstance(value, dict)
            and all(_are_names(one) for one in value.values() if isinstance(one, list))
        ),
        "an object of schemas and lists of names",
    ),
)
"""Keywords, whether they may have a value, and which values they may have, in words."""


def _check(part: Part) -> None:
    unsupported = sorted(UNSUPPORTED & part.schema.keys())
    if unsupported:
        raise schema_error(part.path, f"keyword {', '.join(unsupported)} is not supported; leave it out")
    for keywords, may_have, allowed in _ALLOWED:
        for keyword in keywords.split():
            if keyword in part.schema and not may_have(part.schema[keyword]):
                got = part.schema[keyword]
                raise schema_error(part.path, f"{keyword}: got {got!r}; allowed: {allowed}")


class KeywordReader:
    def __init__(self) -> None:
        self._patterns: set[str] = set()
        self._known: dict[object, Facts] = {}

    def facts(self, part: Part) -> Facts:
        """The facts that are stated by keywords which neither refer to others nor combine them. Raises SettingsError
        for a keyword that is not supported, and for values that keywords do not have."""
        if part.key() not in self._known:
            self._known[part.key()] = self._facts(part)
        return self._known[part.key()]

    def _facts(self, part: Part) -> Facts:
        _check(part)
        schema = part.schema
        contains = (part.under("contains"),) if "contains" in schema else ()
        min_items, max_items = _size(part, "Items")
        stated = Facts(
            types=types_named(schema["type"]) if "type" in schema else TYPES,
            values=common_values(
                tuple(schema["enum"]) if "enum" in schema else None,
                (schema["const"],) if "const" in schema else None,
            ),
            members=_members(part),
            required=_required(schema),
            names=(part.under("propertyNames"),) if "propertyNames" in schema else (),
            num_properties=_size(part, "Properties"),
            items=_items(part),
            contains=contains,
            num_items=(max(min_items, len(contains)), max_items),
            unique=schema.get("uniqueItems", False),
            patterns=((schema["pattern"], True),) if "pattern" in schema else (),
            formats=(schema["format"],) if schema.get("format") in STRING_FORMATS else (),
            length=_size(part, "Length"),
            lower=max(_bounds(part, "inimum"), default=None),
            upper=smaller_bound(*_bounds(part, "aximum")),
            multiples=(Decimal(repr(schema["multipleOf"])),) if "multipleOf" in schema else (),
            path=part.path,
        )
        for pattern, _ in stated.patterns:
            self.check_pattern(pattern, part.path)
        return stated.consistent()

    def check_pattern(self, pattern: str, path: str) -> None:
        """Raises SettingsError for a pattern that is not supported, and for too many patterns."""
        if pattern in self._patterns:
            return
        problem = f"got more than {MAX_PATTERNS} different patterns; allowed: {MAX_PATTERNS}; leave some out"
        if len(self._patterns) == MAX_PATTERNS:
            raise schema_error(path, problem)
        try:
            pattern_automaton(pattern)
        except SettingsError as error:
            raise schema_error(path, f"pattern: got {pattern!r}: {error}") from None
        except TooManyStatesError:
            problem = f"pattern: got {pattern!r}, which is too large; use a simpler one"
            raise schema_error(path, problem) from None
        self._patterns.add(pattern)


def types_named(given: str | list[str]) -> frozenset[str]:
    return frozenset().union(*(NAMED_TYPES[name] for name in ([given] if isinstance(given, str) else given)))


def _members(part: Part) -> tuple[Members, ...]:
    if not {"properties", "patternProperties", "additionalProperties"} & part.schema.keys():
        return ()
    additional = part.under("additionalProperties") if "additionalProperties" in part.schema else None
    return (Members(part.named("properties"), tuple(part.named("patternProperties").items()), additional),)


def _required(schema: dict[str, Any]) -> tuple[str, ...]:
    """The names that have to be there; in draft 3 the properties themselves say so."""
    given, properties = schema.get("required", []), schema.get("properties", {}).items()
    own = [name for name, one in properties if isinstance(one, dict) and one.get("required") is True]
    return tuple(dict.fromkeys([*([] if isinstance(given, bool) else given), *own]))


def _items(part: Part) -> tuple[Items, ...]:
    old = isinstance(part.schema.get("items"), list) and "prefixItems" not in part.schema
    prefix = part.listed("items" if old else "prefixItems")
    after = "additionalItems" if old else "items"
    rest = part.under(after) if after in part.schema else None
    return (Items(prefix, rest),) if prefix or rest is not None else ()


def _size(part: Part, name: str) -> Size:
    """The minimum and the maximum that two keywords give."""
    minimum, maximum = part.schema.get(f"min{name}", 0), part.schema.get(f"max{name}")
    if maximum is not None and maximum < minimum:
        raise schema_error(part.path, f"max{name} ({maximum}) is below min{name} ({minimum}); correct them")
    return int(minimum), None if maximum is None else int(maximum)


def _bounds(part: Part, end: str) -> list[tuple[Decimal, bool]]:
    """The bounds of numbers at one end, also in draft 4, whose exclusive bounds are flags."""
    plain, exclusive = f"m{end}", f"exclusiveM{end}"
    bounds = []
    for name in (plain, exclusive):
        value = part.schema.get(name)
        if value is None or isinstance(value, bool):
            continue
        if abs(value) > MAX_BOUND:
            if (end == "inimum") == (value > 0):
                allowed = f"a number up to {MAX_BOUND:.0e}"
                raise schema_error(part.path, f"{name}: got {value!r}; allowed: {allowed}")
            value = math.copysign(MAX_BOUND, value)  # answers have no numbers beyond it
        bounds.append((Decimal(repr(value)), name == exclusive or part.schema.get(exclusive) is True))
    return bounds
