"""Whether two schemas exclude each other: then `oneOf` of both is `anyOf`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lopa_ray.constraints.json_schema_keywords import NAMED_TYPES
from lopa_ray.constraints.schema_facts import TYPES, Part, canonical, type_of

if TYPE_CHECKING:
    from lopa_ray.constraints.schema_reader import SchemaReader

_MAX_DEPTH = 5


@dataclass(frozen=True, slots=True)
class _Outline:
    """Some of what a schema says; every valid value has it."""

    types: frozenset[str] = TYPES
    values: tuple[Any, ...] | None = None
    required: frozenset[str] = frozenset()
    properties: Mapping[str, tuple[Part, ...]] = field(default_factory=dict)
    only: frozenset[str] | None = None
    """The only names of members; None if others are allowed."""

    def merged(self, other: _Outline) -> _Outline:
        """The outline of values that have both. Of two lists of values or names one is enough."""
        names = self.properties.keys() | other.properties.keys()
        return _Outline(
            self.types & other.types,
            self.values if other.values is None else other.values,
            self.required | other.required,
            {name: (*self.properties.get(name, ()), *other.properties.get(name, ())) for name in names},
            self.only if other.only is None else other.only,
        )


def exclude_each_other(reader: SchemaReader, first: Part, second: Part, depth: int = 0) -> bool:
    """Whether it is plain that no value is valid under both."""
    return depth < _MAX_DEPTH and all(
        _outlines_exclude(reader, one, other, depth)
        for one in _outlines(reader, first, depth)
        for other in _outlines(reader, second, depth)
    )


def _outlines_exclude(reader: SchemaReader, one: _Outline, other: _Outline, depth: int) -> bool:
    types = one.types & other.types
    for values, against in ((one.values, other.values), (other.values, one.values)):
        if values is not None:
            known = None if against is None else {canonical(value) for value in against}
            left = [v for v in values if type_of(v) in types and (known is None or canonical(v) in known)]
            types &= {type_of(value) for value in left}
    if types != {"object"}:
        return not types
    for outline, closed in ((one, other.only), (other, one.only)):
        if closed is not None and outline.required - closed:
            return True
    common = (one.required | other.required) & one.properties.keys() & other.properties.keys()
    return any(
        exclude_each_other(reader, part, against, depth + 1)
        for name in common
        for part in one.properties[name]
        for against in other.properties[name]
    )


def _outlines(reader: SchemaReader, part: Part, depth: int) -> list[_Outline]:
    """The outlines of a schema's alternatives. What is not understood here leaves more values."""
    schema = part.schema
    if schema is False:
        return []
    if not isinstance(schema, dict) or depth >= _MAX_DEPTH:
        return [_Outline()]
    if "$ref" in schema:  # older drafts ignore what stands beside it
        return _outlines(reader, reader.target(part), depth + 1)
    found = [_stated(part, reader.knows_const)]
    for one in schema.get("allOf") or ():
        nested = _outlines(reader, Part(one, part.path, part.open_refs), depth + 1)
        found = [outline.merged(other) for outline in found for other in nested]
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list) and len(found) <= 64:
            nested = [
                outline
                for one in schema[keyword]
                for outline in _outlines(reader, Part(one, part.path, part.open_refs), depth + 1)
            ]
            found = [outline.merged(other) for outline in found for other in nested]
    return found


def _stated(part: Part, knows_const: bool) -> _Outline:
    schema = part.schema
    given = schema.get("type", list(NAMED_TYPES))
    types = [given] if isinstance(given, str) else given
    types = [*types, "null"] if schema.get("nullable") is True else types  # as OpenAPI 3.0 reads it
    values = schema.get("enum", [schema["const"]] if "const" in schema and knows_const else None)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return _Outline()
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return _Outline(
        frozenset().union(*(NAMED_TYPES.get(name, TYPES) for name in types if isinstance(name, str))),
        tuple(values) if isinstance(values, list) else None,
        frozenset(name for name in required if isinstance(name, str)),
        {name: (Part(one, part.path, part.open_refs),) for name, one in properties.items()},
        frozenset(properties) if closed else None,
    )
