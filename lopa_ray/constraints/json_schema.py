"""Translates a JSON schema to a regular expression of JSON texts that are valid under the schema.

Every text that matches is valid, but not every valid text matches. Objects have the listed properties in the listed
order. Between JSON tokens there is at most one space. Strings contain no \\u escapes. A regular expression cannot count
levels of nesting. Nesting therefore ends at a fixed depth where the schema does not define it (for example in an object
without properties) and where the schema refers to itself. The error for an unsupported keyword names the keyword.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from lopa_ray.constraints.byte_automaton import ByteAutomaton, normalize_regex
from lopa_ray.constraints.json_regex import (
    CHARACTER,
    NUMBER,
    SPACE,
    STRING,
    STRING_FORMATS,
    any_value,
    comma_separated,
    ordered_properties,
    uniform_object,
)
from lopa_ray.constraints.json_schema_keywords import (
    BOUNDS,
    KEYWORDS,
    check_keywords,
    has_type,
    implied_type,
    length_bounds,
    listed_schemas,
    listed_types,
    schema_error,
)
from lopa_ray.constraints.regex import alternatives, integer_range, literal

ANY_VALUE_DEPTH = 2
"""Levels of objects and arrays where the schema does not define their members; `{"type": "object"}` is one level."""

MAX_RECURSION = 3
"""Maximum number of times that a reference may be followed within itself."""

MAX_SUBSCHEMAS, MAX_REGEX_LENGTH = 5_000, 200_000
"""Maximum parts of a schema, with references resolved, and characters of its expression: both grow with references."""

MAX_TOTAL_LENGTH = 20 * MAX_REGEX_LENGTH
"""Maximum characters of the expressions of all parts together. A nested part counts again in every part around it."""

MAX_PATTERNS = 16
"""Maximum number of different patterns in a schema. Each is compiled by itself, which may take several seconds."""

TOO_LARGE = "it unfolds into too much; use fewer references, properties and repetitions"

MAX_BOUND = 10**15
"""Largest magnitude of a bound for integers."""

Regex: TypeAlias = str | None
"""A regular expression; None if no text is valid, or none within the limits of nesting."""


@lru_cache(64)
def schema_regex(text: str) -> str:
    """The regular expression of a schema that is given as JSON text.

    Raises SettingsError for text that is not a JSON schema, for keywords that are not supported (it names them and
    their place in the schema), and for a schema that no value satisfies.
    """
    try:
        schema = json.loads(text)
        json.dumps(schema, allow_nan=False)  # Python parses NaN and 1e999, which are not valid JSON
    except ValueError as error:
        raise schema_error("", f"got text that is no JSON ({error}); give a JSON schema") from None
    except RecursionError:
        raise schema_error("", "it is nested too deeply; simplify it") from None
    try:
        regex = _SchemaCompiler(schema).regex(schema, "", ())
    except RecursionError:
        raise schema_error("", "it is nested too deeply; simplify it") from None
    if regex is None:
        raise schema_error("", "it allows no value of finite length; relax it")
    return regex


class _SchemaCompiler:
    """Compiles one schema. `path` is the place of a part in it, `open_refs` are the references followed to it."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._patterns: dict[str, str] = {}
        self._num_subschemas = self._total_length = 0

    def regex(self, schema: Any, path: str, open_refs: tuple[str, ...]) -> Regex:
        """The expression of a part of the schema. Raises SettingsError."""
        self._num_subschemas += 1
        expression = self._regex(schema, path, open_refs) if self._num_subschemas <= MAX_SUBSCHEMAS else None
        length = len(expression or "")
        self._total_length += length
        if (
            self._num_subschemas > MAX_SUBSCHEMAS
            or length > MAX_REGEX_LENGTH
            or self._total_length > MAX_TOTAL_LENGTH
        ):
            raise schema_error(path, TOO_LARGE)
        return expression

    def _regex(self, schema: Any, path: str, open_refs: tuple[str, ...]) -> Regex:
        if schema is True or schema == {}:
            return any_value(ANY_VALUE_DEPTH)
        if schema is False:
            return None
        if not isinstance(schema, dict):
            raise schema_error(path, f"got {schema!r}; allowed: an object, true or false")
        for form in ("$ref", "enum", "const", "anyOf", "allOf"):
            if form in schema:
                allowed = {form, "type"} if form in ("enum", "const") else {form}
                check_keywords(schema, allowed, path)
                return self._rules_by_form[form](self, schema, path, open_refs)
        given = schema.get("type", implied_type(schema))
        if given is None:
            check_keywords(schema, set(), path)
            return any_value(ANY_VALUE_DEPTH)
        types = listed_types(given, path)
        check_keywords(schema, set().union(*(KEYWORDS[name] for name in types), {"type"}), path)
        return alternatives(self._rules_by_type[name](self, schema, path, open_refs) for name in types)

    # Forms

    def _reference(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        target = schema["$ref"]
        if not isinstance(target, str) or not target.startswith("#"):
            raise schema_error(
                path, f"$ref: got {target!r}; allowed: a place in this schema, as in #/$defs/name"
            )
        if open_refs.count(target) >= MAX_RECURSION:
            return None
        subschema = self._root
        for token in filter(None, target[1:].split("/")):  # a JSON pointer
            name = token.replace("~1", "/").replace("~0", "~")
            if not isinstance(subschema, dict) or name not in subschema:
                raise schema_error(
                    path, f"$ref: got {target!r}, which the schema does not contain; correct it"
                )
            subschema = subschema[name]
        return self.regex(subschema, target, (*open_refs, target))

    def _values(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        if not isinstance(values, list):
            raise schema_error(path, f"enum: got {values!r}; allowed: a list")
        types = listed_types(schema.get("type", list(KEYWORDS)), path)
        valid = [value for value in values if any(has_type(value, name) for name in types)]
        return alternatives(literal(json.dumps(value, ensure_ascii=False)) for value in valid)

    def _any_of(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        parts = listed_schemas(schema, "anyOf", path)
        return alternatives(
            self.regex(part, f"{path}.anyOf[{at}]", open_refs) for at, part in enumerate(parts)
        )

    def _all_of(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        parts = listed_schemas(schema, "allOf", path)
        if len(parts) != 1:
            raise schema_error(path, f"allOf: got {len(parts)} schemas; allowed: one. Merge them into one")
        return self.regex(parts[0], f"{path}.allOf[0]", open_refs)

    # Types

    def _object(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        properties, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(properties, dict | None) or not isinstance(required, list):
            raise schema_error(path, "properties has to be an object, and required a list; correct them")
        missing = [name for name in required if not isinstance(name, str) or name not in (properties or {})]
        if missing:
            raise schema_error(
                path, f"required names {missing[0]!r}, which is not in properties; add it there"
            )
        if properties is None and schema.get("additionalProperties", True) is not False:
            value = schema.get("additionalProperties", True)
            inner = (
                any_value(ANY_VALUE_DEPTH - 1)
                if value is True
                else self.regex(value, f"{path}.additionalProperties", open_refs)
            )
            return uniform_object(inner and f"{STRING}{SPACE}:{SPACE}{inner}{SPACE}")
        needed = set(required)
        pairs: list[tuple[str, bool]] = []
        for name, part in (properties or {}).items():
            value = self.regex(part, f"{path}.{name}", open_refs)
            if value is None and name in needed:
                return None
            if value is not None:
                key = literal(json.dumps(name, ensure_ascii=False))
                pairs.append((f"{key}{SPACE}:{SPACE}{value}{SPACE}", name in needed))
        # If no property is required, each may be the first, and the expression repeats all properties after it.
        length = sum(len(pair) * (1 if needed else at) for at, (pair, _) in enumerate(pairs, 1))
        if length > MAX_REGEX_LENGTH:
            raise schema_error(path, TOO_LARGE)
        return rf"\{{{SPACE}{ordered_properties(pairs)}\}}"

    def _array(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        minimum, maximum = length_bounds(schema, "minItems", "maxItems", path)
        prefix = listed_schemas(schema, "prefixItems", path) if "prefixItems" in schema else []
        fixed = [self.regex(part, f"{path}.prefixItems[{at}]", open_refs) for at, part in enumerate(prefix)]
        if fixed:
            # A tuple has all of its parts and no further items.
            whole = None not in fixed and minimum <= len(fixed) and (maximum is None or maximum >= len(fixed))
            items = f"{SPACE},{SPACE}".join(part or "" for part in fixed)
            return rf"\[{SPACE}{items}{SPACE}\]" if whole else None
        free_item = any_value(ANY_VALUE_DEPTH - 1)
        rest = self.regex(schema["items"], f"{path}.items", open_refs) if "items" in schema else free_item
        if rest is None or maximum == 0:
            return rf"\[{SPACE}\]" if minimum == 0 else None
        return rf"\[{SPACE}{comma_separated(f'{rest}{SPACE}', minimum, maximum)}\]"

    def _string(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        shapes = [name for name in ("pattern", "format") if name in schema]
        sized = "minLength" in schema or "maxLength" in schema
        if len(shapes) + sized > 1:
            raise schema_error(
                path, f"{shapes[0]} cannot be combined with other keywords for strings; leave one out"
            )
        if "format" in schema:
            if schema["format"] not in list(STRING_FORMATS):
                raise schema_error(
                    path, f"format: got {schema['format']!r}; allowed: {', '.join(STRING_FORMATS)}"
                )
            return f'"{STRING_FORMATS[schema["format"]]}"'
        if "pattern" in schema:
            return f'"(?:{self._pattern(schema["pattern"], path)})"'
        minimum, maximum = length_bounds(schema, "minLength", "maxLength", path)
        return f'"{CHARACTER}{{{minimum},{"" if maximum is None else maximum}}}"'

    def _pattern(self, pattern: Any, path: str) -> str:
        """As the function `_pattern`, with a cache: references may use the same pattern a thousand times."""
        if not isinstance(pattern, str):
            raise schema_error(path, f"pattern: got {pattern!r}; allowed: a regular expression")
        if pattern not in self._patterns:
            if len(self._patterns) == MAX_PATTERNS:
                raise schema_error(
                    path,
                    f"got more than {MAX_PATTERNS} different patterns; allowed: {MAX_PATTERNS}; leave some out, or ask "
                    "in parts",
                )
            self._patterns[pattern] = _pattern(pattern, path)
        return self._patterns[pattern]

    def _integer(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        for name in BOUNDS & schema.keys():
            if type(schema[name]) not in (int, float) or not abs(schema[name]) <= MAX_BOUND:
                raise schema_error(
                    path, f"{name}: got {schema[name]!r}; allowed: a number up to {MAX_BOUND:.0e}"
                )
        lower = [math.ceil(schema[name]) for name in ("minimum",) if name in schema]
        lower += [math.floor(schema[name]) + 1 for name in ("exclusiveMinimum",) if name in schema]
        upper = [math.floor(schema[name]) for name in ("maximum",) if name in schema]
        upper += [math.ceil(schema[name]) - 1 for name in ("exclusiveMaximum",) if name in schema]
        return integer_range(max(lower, default=None), min(upper, default=None))

    def _number(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        if BOUNDS & schema.keys():
            raise schema_error(
                path, "bounds are supported for integers, not for numbers; use integer, or leave them out"
            )
        return NUMBER

    def _boolean(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        return "(?:true|false)"

    def _null(self, schema: dict[str, Any], path: str, open_refs: tuple[str, ...]) -> Regex:
        return "null"

    _Rule: TypeAlias = Callable[["_SchemaCompiler", dict[str, Any], str, tuple[str, ...]], Regex]
    _rules_by_form: Mapping[str, _Rule] = {
        "$ref": _reference, "enum": _values, "const": _values, "anyOf": _any_of, "allOf": _all_of,
    }  # fmt: skip
    _rules_by_type: Mapping[str, _Rule] = {
        "object": _object, "array": _array, "string": _string, "integer": _integer, "number": _number,
        "boolean": _boolean, "null": _null,
    }  # fmt: skip


def _pattern(pattern: str, path: str) -> str:
    """The normalised pattern for use between the quotes of a JSON string.

    Raises SettingsError if the pattern can match characters that JSON strings have to escape.
    """
    body = normalize_regex(pattern, space=" ")
    transitions = ByteAutomaton.from_regex(body).transitions
    forbidden = [*range(0x20), ord('"'), ord("\\")]
    if (transitions[:, forbidden] != len(transitions) - 1).any():
        raise schema_error(
            path,
            f"pattern: got {pattern!r}, which can match quotes, backslashes or control characters, and those "
            r"are escaped in JSON; exclude them, for example with [^\"\\\x00-\x1f] instead of a dot",
        )
    return body
