"""JSON schema → a regular expression of JSON texts that are valid under it.

Sound before complete: every text that matches is valid, not every valid text matches. Objects have the
listed properties, in the order listed. Between tokens there is at most one space. Strings hold what needs
no \\u escape. Where a schema says nothing (an object without properties, say), and where it refers to
itself, nesting ends at a fixed depth, since no regular expression can count. Every keyword that is not
understood is refused by name: ignoring it would be a promise broken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from lopa_ray.constraints.byte_automaton import ByteAutomaton, plain
from lopa_ray.constraints.json_regex import (
    CHARACTER,
    FORMATS,
    NUMBER,
    SPACE,
    STRING,
    braces,
    free,
    in_order,
    separated,
)
from lopa_ray.constraints.regex import alternatives, integers, literal
from lopa_ray.errors import SettingsError

FREE_DEPTH = 2
"""How deep objects and arrays nest where the schema does not say; `{"type": "object"}` is one level."""

SELF_DEPTH = 3
"""How often a reference may occur within itself."""

MAX_PARTS, MAX_LENGTH = 5_000, 200_000
"""Parts that references may unfold into, and characters of the expression: few lines can say a lot."""

MAX_WRITTEN = 20 * MAX_LENGTH
"""Characters of the expressions of all parts, each within those around it."""

MAX_PATTERNS = 16
"""Different ones in a schema: each is tried out by itself, which may take seconds."""

TOO_MUCH = "it unfolds into too much; use fewer references, properties and repetitions"

MAX_BOUND = 10**15
"""Largest magnitude of a bound for integers."""

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
"""What each type understands."""

Regex: TypeAlias = str | None
"""None: no text at all is valid (or none that is short enough)."""


@lru_cache(64)
def schema_regex(text: str) -> str:
    """The regular expression of a schema, given as JSON.

    Raises SettingsError for text that is no schema, keywords that are not supported (naming them and
    where they stand), and a schema that allows nothing.
    """
    try:
        schema = json.loads(text)
        json.dumps(schema, allow_nan=False)  # Python reads NaN and 1e999, which are no JSON
    except ValueError as error:
        raise _error("", f"got text that is no JSON ({error}); give a JSON schema") from None
    except RecursionError:
        raise _error("", "it is nested too deeply; simplify it") from None
    try:
        found = _Translation(schema).regex(schema, "", ())
    except RecursionError:
        raise _error("", "it is nested too deeply; simplify it") from None
    if found is None:
        raise _error("", "it allows no value that ends; loosen it")
    return found


class _Translation:
    """One schema's; `path` says where in it a part stands, `within` which references lead there."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._patterns: dict[str, str] = {}
        self._parts = self._written = 0

    def regex(self, schema: Any, path: str, within: tuple[str, ...]) -> Regex:
        """Of a part of the schema. Raises SettingsError."""
        self._parts += 1
        found = self._regex(schema, path, within) if self._parts <= MAX_PARTS else None
        length = len(found or "")
        self._written += length
        if self._parts > MAX_PARTS or length > MAX_LENGTH or self._written > MAX_WRITTEN:
            raise _error(path, TOO_MUCH)
        return found

    def _regex(self, schema: Any, path: str, within: tuple[str, ...]) -> Regex:
        if schema is True or schema == {}:
            return free(FREE_DEPTH)
        if schema is False:
            return None
        if not isinstance(schema, dict):
            raise _error(path, f"got {schema!r}; allowed: an object, true or false")
        for form in ("$ref", "enum", "const", "anyOf", "allOf"):
            if form in schema:
                allowed = {form, "type"} if form in ("enum", "const") else {form}
                self._only(schema, allowed, path)
                return self._forms[form](self, schema, path, within)
        kinds = schema.get("type", _implied(schema))
        if kinds is None:
            self._only(schema, set(), path)
            return free(FREE_DEPTH)
        listed = _kinds(kinds, path)
        self._only(schema, set().union(*(KEYWORDS[kind] for kind in listed), {"type"}), path)
        return alternatives(self._types[kind](self, schema, path, within) for kind in listed)

    @staticmethod
    def _only(schema: dict[str, Any], allowed: set[str], path: str) -> None:
        unknown = sorted(schema.keys() - allowed - ANNOTATIONS)
        if unknown:
            with_others = "; ".join(sorted(allowed)) or "nothing but annotations"
            raise _error(
                path,
                f"keyword {', '.join(unknown)} is not supported here; supported: {with_others}: leave it out",
            )

    # Forms

    def _reference(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        target = schema["$ref"]
        if not isinstance(target, str) or not target.startswith("#"):
            raise _error(path, f"$ref: got {target!r}; allowed: a place in this schema, as in #/$defs/name")
        if within.count(target) >= SELF_DEPTH:
            return None
        found = self._root
        for step in filter(None, target[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise _error(path, f"$ref: got {target!r}, which leads nowhere; correct it")
            found = found[name]
        return self.regex(found, target, (*within, target))

    def _values(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list):
            raise _error(path, f"enum: got {values!r}; allowed: a list")
        kinds = _kinds(schema.get("type", list(KEYWORDS)), path)
        fitting = [value for value in values if any(_is(value, kind) for kind in kinds)]
        return alternatives(literal(json.dumps(value, ensure_ascii=False)) for value in fitting)

    def _any_of(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        parts = _listed(schema, "anyOf", path)
        return alternatives(self.regex(part, f"{path}.anyOf[{at}]", within) for at, part in enumerate(parts))

    def _all_of(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        parts = _listed(schema, "allOf", path)
        if len(parts) != 1:
            raise _error(path, f"allOf: got {len(parts)} schemas; allowed: one. Merge them into one")
        return self.regex(parts[0], f"{path}.allOf[0]", within)

    # Types

    def _object(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict | None) or not isinstance(required, list):
            raise _error(path, "properties has to be an object, and required a list; correct them")
        missing = [name for name in required if not isinstance(name, str) or name not in (properties or {})]
        if missing:
            raise _error(path, f"required names {missing[0]!r}, which is not in properties; add it there")
        if properties is None and schema.get("additionalProperties", True) is not False:
            value = schema.get("additionalProperties", True)
            inner = (
                free(FREE_DEPTH - 1)
                if value is True
                else self.regex(value, f"{path}.additionalProperties", within)
            )
            return braces(inner and f"{STRING}{SPACE}:{SPACE}{inner}{SPACE}")
        needed = set(required)
        pairs: list[tuple[str, bool]] = []
        for name, part in (properties or {}).items():
            value = self.regex(part, f"{path}.{name}", within)
            if value is None and name in needed:
                return None
            if value is not None:
                key = literal(json.dumps(name, ensure_ascii=False))
                pairs.append((f"{key}{SPACE}:{SPACE}{value}{SPACE}", name in needed))
        # Where none is required, each may be the first, and all behind it are written once more.
        written = sum(len(pair) * (1 if needed else at) for at, (pair, _) in enumerate(pairs, 1))
        if written > MAX_LENGTH:
            raise _error(path, TOO_MUCH)
        return rf"\{{{SPACE}{in_order(pairs)}\}}"

    def _array(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        least, most = _counts(schema, "minItems", "maxItems", path)
        prefix = _listed(schema, "prefixItems", path) if "prefixItems" in schema else []
        fixed = [self.regex(part, f"{path}.prefixItems[{at}]", within) for at, part in enumerate(prefix)]
        if fixed:
            # A tuple: all of its parts, and nothing behind them.
            whole = None not in fixed and least <= len(fixed) and (most is None or most >= len(fixed))
            items = f"{SPACE},{SPACE}".join(part or "" for part in fixed)
            return rf"\[{SPACE}{items}{SPACE}\]" if whole else None
        free_item = free(FREE_DEPTH - 1)
        rest = self.regex(schema["items"], f"{path}.items", within) if "items" in schema else free_item
        if rest is None or most == 0:
            return rf"\[{SPACE}\]" if least == 0 else None
        return rf"\[{SPACE}{separated(f'{rest}{SPACE}', least, most)}\]"

    def _string(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        shapes = [name for name in ("pattern", "format") if name in schema]
        sized = "minLength" in schema or "maxLength" in schema
        if len(shapes) + sized > 1:
            raise _error(
                path, f"{shapes[0]} cannot be combined with other keywords for strings; leave one out"
            )
        if "format" in schema:
            if schema["format"] not in list(FORMATS):
                raise _error(path, f"format: got {schema['format']!r}; allowed: {', '.join(FORMATS)}")
            return f'"{FORMATS[schema["format"]]}"'
        if "pattern" in schema:
            return f'"(?:{self._pattern(schema["pattern"], path)})"'
        least, most = _counts(schema, "minLength", "maxLength", path)
        return f'"{CHARACTER}{{{least},{"" if most is None else most}}}"'

    def _pattern(self, pattern: Any, path: str) -> str:
        """As `_pattern`, once for each: a reference may bring the same one back a thousand times."""
        if not isinstance(pattern, str):
            raise _error(path, f"pattern: got {pattern!r}; allowed: a regular expression")
        if pattern not in self._patterns:
            if len(self._patterns) == MAX_PATTERNS:
                raise _error(
                    path,
                    f"got more than {MAX_PATTERNS} different patterns; allowed: {MAX_PATTERNS}; leave some out, or ask "
                    "in parts",
                )
            self._patterns[pattern] = _pattern(pattern, path)
        return self._patterns[pattern]

    def _integer(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        for name in BOUNDS & schema.keys():
            if type(schema[name]) not in (int, float) or not abs(schema[name]) <= MAX_BOUND:
                raise _error(path, f"{name}: got {schema[name]!r}; allowed: a number up to {MAX_BOUND:.0e}")
        least = [math.ceil(schema[name]) for name in ("minimum",) if name in schema]
        least += [math.floor(schema[name]) + 1 for name in ("exclusiveMinimum",) if name in schema]
        most = [math.floor(schema[name]) for name in ("maximum",) if name in schema]
        most += [math.ceil(schema[name]) - 1 for name in ("exclusiveMaximum",) if name in schema]
        return integers(max(least, default=None), min(most, default=None))

    def _number(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        if BOUNDS & schema.keys():
            raise _error(
                path, "bounds are supported for integers, not for numbers; use integer, or leave them out"
            )
        return NUMBER

    def _boolean(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        return "(?:true|false)"

    def _null(self, schema: dict[str, Any], path: str, within: tuple[str, ...]) -> Regex:
        return "null"

    _Part: TypeAlias = Callable[["_Translation", dict[str, Any], str, tuple[str, ...]], Regex]
    _forms: Mapping[str, _Part] = {
        "$ref": _reference, "enum": _values, "const": _values, "anyOf": _any_of, "allOf": _all_of,
    }  # fmt: skip
    _types: Mapping[str, _Part] = {
        "object": _object, "array": _array, "string": _string, "integer": _integer, "number": _number,
        "boolean": _boolean, "null": _null,
    }  # fmt: skip


def _pattern(pattern: str, path: str) -> str:
    """A pattern as it may stand between quotes: what it matches as a whole, if that never needs escaping."""
    body = plain(pattern, space=" ")
    table = ByteAutomaton.from_regex(body).table
    forbidden = [*range(0x20), ord('"'), ord("\\")]
    if (table[:, forbidden] != len(table) - 1).any():
        raise _error(
            path,
            f"pattern: got {pattern!r}, which can match quotes, backslashes or control characters, and those "
            r"are escaped in JSON; exclude them, as in [^\"\\\x00-\x1f] instead of a dot",
        )
    return body


def _implied(schema: dict[str, Any]) -> str | None:
    return next((kind for kind, names in KEYWORDS.items() if names & schema.keys()), None)


def _kinds(given: Any, path: str) -> list[str]:
    """The types that `type` lists."""
    kinds: list[Any] = given if isinstance(given, list) else [given]
    for kind in kinds:
        if not isinstance(kind, str) or kind not in KEYWORDS:
            raise _error(path, f"type: got {kind!r}; allowed: {', '.join(KEYWORDS)}")
    return kinds


def _is(value: Any, kind: str) -> bool:
    """Whether a value has a JSON type."""
    types: dict[str, tuple[type, ...]] = {
        "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
        "boolean": (bool,), "null": (type(None),),
    }  # fmt: skip
    return type(value) in types.get(kind, ())


def _listed(schema: dict[str, Any], name: str, path: str) -> list[Any]:
    parts = schema[name]
    if not isinstance(parts, list) or not parts:
        raise _error(path, f"{name}: got {parts!r}; allowed: a list of schemas")
    return parts


def _counts(schema: dict[str, Any], least: str, most: str, path: str) -> tuple[int, int | None]:
    for name in (least, most):
        if name in schema and (type(schema[name]) is not int or schema[name] < 0):
            raise _error(path, f"{name}: got {schema[name]!r}; allowed: a whole number from 0 on")
    if most in schema and schema[most] < schema.get(least, 0):
        raise _error(path, f"{most} ({schema[most]}) is below {least} ({schema[least]}); correct them")
    return schema.get(least, 0), schema.get(most)


def _error(path: str, message: str) -> SettingsError:
    where = f" at {path.lstrip('.')}" if path else ""
    return SettingsError(f"JSON schema{where}: {message}")
