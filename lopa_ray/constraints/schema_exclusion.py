"""Whether two schemas exclude each other: then `oneOf` of both is `anyOf`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lopa_ray.constraints.json_schema_keywords import NAMED_TYPES
from lopa_ray.constraints.schema_facts import TYPES, Facts, Members, Part, type_of

if TYPE_CHECKING:
    from lopa_ray.constraints.schema_reader import SchemaReader

_MAX_DEPTH = 5


def exclude_each_other(reader: SchemaReader, first: Part, second: Part, depth: int = 0) -> bool:
    return depth < _MAX_DEPTH and all(
        _outlines_exclude(reader, one, other, depth)
        for one in _outlines(reader, first, depth)
        for other in _outlines(reader, second, depth)
    )


def _outlines_exclude(reader: SchemaReader, one: Facts, other: Facts, depth: int) -> bool:
    both = one.merged(other)
    types = both.types if both.values is None else {type_of(value) for value in both.values}
    if types != {"object"}:
        return not types
    return any(
        exclude_each_other(reader, part, against, depth + 1)
        for name in both.required
        for part in one.of(name)
        for against in other.of(name)
    )


def _outlines(reader: SchemaReader, part: Part, depth: int) -> list[Facts]:
    """The outlines of a schema's alternatives: some facts that every valid value has."""
    schema = part.schema
    if schema is False:
        return []
    if not isinstance(schema, dict) or depth >= _MAX_DEPTH:
        return [Facts()]
    if "$ref" in schema:  # older drafts ignore other keywords with it
        return _outlines(reader, reader.target(part), depth + 1)
    found = [_stated(part, reader.knows_const)]
    several = [[one] for one in part.listed("allOf")]
    several += [list(part.listed(keyword)) for keyword in ("anyOf", "oneOf") if keyword in schema]
    for parts in several:
        nested = [outline for one in parts for outline in _outlines(reader, one, depth + 1)]
        if len(found) <= 64:
            found = [outline.merged(other) for outline in found for other in nested]
    return found


def _stated(part: Part, knows_const: bool) -> Facts:
    schema = part.schema
    given = schema.get("type", list(NAMED_TYPES))
    types = [given] if isinstance(given, str) else given
    types = [*types, "null"] if schema.get("nullable") is True else types  # as OpenAPI 3.0 reads it
    values = schema.get("enum", [schema["const"]] if "const" in schema and knows_const else None)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return Facts()
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return Facts(
        types=frozenset().union(*(NAMED_TYPES.get(name, TYPES) for name in types if isinstance(name, str))),
        values=tuple(values) if isinstance(values, list) else None,
        members=(Members(part.named("properties"), additional=Part(False, part.path) if closed else None),),
        required=tuple(name for name in required if isinstance(name, str)),
    )
