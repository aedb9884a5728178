"""What excludes a schema: facts under which no value is valid under it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lopa_ray.constraints.json_schema_keywords import MAX_BOUND, NAMED_TYPES, listed_schemas
from lopa_ray.constraints.schema_facts import TYPES, Facts, Members, Part

if TYPE_CHECKING:
    from lopa_ray.constraints.schema_reader import SchemaReader

_MAX_DEPTH = 8
_OBJECT, _ARRAY, _STRING = (NAMED_TYPES[name] for name in ("object", "array", "string"))


def negated_facts(reader: SchemaReader, part: Part, depth: int = 0) -> list[Facts]:
    """Alternatives, each of which excludes a schema; not all that do. Raises SettingsError."""
    schema = part.schema
    if schema is False:
        return [Facts()]
    if not isinstance(schema, dict) or depth >= _MAX_DEPTH:
        return []
    if "$ref" in schema:  # older drafts ignore what stands beside it
        return negated_facts(reader, reader.target(part), depth + 1)
    found = [*_negated_keywords(reader, part), *_negated_members(reader, part, depth)]
    for one in listed_schemas(part, "allOf") if "allOf" in schema else ():
        found += negated_facts(reader, one, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            none = [Facts()]
            for one in listed_schemas(part, keyword):
                negated = negated_facts(reader, one, depth + 1)
                none = [facts.merged(other) for facts in none for other in negated][:64]
            found += none
    if "not" in schema:
        found += reader.read(Part(schema["not"], f"{part.path}.not", part.open_refs))
    return found


def _negated_keywords(reader: SchemaReader, part: Part) -> Iterator[Facts]:
    schema, stated = part.schema, reader.keywords.facts(part)
    if "type" in schema:
        given = schema["type"]
        named = frozenset().union(
            *(NAMED_TYPES[name] for name in ([given] if isinstance(given, str) else given))
        )
        yield Facts(types=TYPES - named - {"null"} if schema.get("nullable") is True else TYPES - named)
    for keyword in ("enum", "const") if reader.knows_const else ("enum",):
        if keyword in schema:
            yield Facts(excluded=tuple(schema[keyword]) if keyword == "enum" else (schema[keyword],))
    for name in given if isinstance(given := schema.get("required"), list) else ():
        yield Facts(types=_OBJECT, absent=frozenset({name}))
    number = NAMED_TYPES["number"]
    if stated.lower is not None and abs(stated.lower[0]) < MAX_BOUND:
        yield Facts(types=number, upper=(stated.lower[0], not stated.lower[1]))
    if stated.upper is not None and abs(stated.upper[0]) < MAX_BOUND:
        yield Facts(types=number, lower=(stated.upper[0], not stated.upper[1]))
    for pattern, _ in stated.patterns:
        yield Facts(types=_STRING, patterns=((pattern, False),))
    least = {name: int(schema.get(name, 0)) - 1 for name in ("minLength", "minItems", "minProperties")}
    most = {
        name: int(schema[name]) + 1 if name in schema else 0
        for name in ("maxLength", "maxItems", "maxProperties")
    }
    yield from (
        facts
        for needed, facts in (
            (least["minLength"] >= 0, Facts(types=_STRING, max_length=least["minLength"])),
            (least["minItems"] >= 0, Facts(types=_ARRAY, max_items=least["minItems"])),
            (least["minProperties"] >= 0, Facts(types=_OBJECT, max_properties=least["minProperties"])),
            (most["maxLength"] > 0, Facts(types=_STRING, min_length=most["maxLength"])),
            (most["maxItems"] > 0, Facts(types=_ARRAY, min_items=most["maxItems"])),
            (most["maxProperties"] > 0, Facts(types=_OBJECT, min_properties=most["maxProperties"])),
        )
        if needed
    )


def _negated_members(reader: SchemaReader, part: Part, depth: int) -> Iterator[Facts]:
    for members in reader.keywords.facts(part).members:
        for name, one in members.properties.items():
            if reader.is_negatable(one, depth + 1):
                opposite = reader.keep(Part({"not": one.schema}, one.path, one.open_refs))
                yield Facts(
                    types=_OBJECT, required=(name,), members=(Members({name: opposite}, lists=False),)
                )
