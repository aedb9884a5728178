"""Facts that exclude a schema: no value with them is valid under it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from lopa_ray.constraints.json_schema_keywords import MAX_BOUND, NAMED_TYPES, types_named
from lopa_ray.constraints.schema_facts import TYPES, Facts, Members, Part, Size

if TYPE_CHECKING:
    from lopa_ray.constraints.schema_reader import SchemaReader

_MAX_DEPTH = 8
_OBJECT, _ARRAY, _STRING = (NAMED_TYPES[name] for name in ("object", "array", "string"))
_SIZED: Mapping[str, Callable[[Size], Facts]] = {
    "Length": lambda size: Facts(types=_STRING, length=size),
    "Items": lambda size: Facts(types=_ARRAY, num_items=size),
    "Properties": lambda size: Facts(types=_OBJECT, num_properties=size),
}
"""The facts of a size, by the end of the names of its keywords."""


def negated_facts(reader: SchemaReader, part: Part, depth: int = 0) -> list[Facts]:
    """Alternatives, each of which excludes a schema; not all that do. Raises SettingsError."""
    schema = part.schema
    if schema is False:
        return [Facts()]
    if not isinstance(schema, dict) or depth >= _MAX_DEPTH:
        return []
    if "$ref" in schema:  # older drafts ignore other keywords with it
        return negated_facts(reader, reader.target(part), depth + 1)
    found = [*_negated_keywords(reader, part), *_negated_members(reader, part, depth)]
    for one in part.listed("allOf"):
        found += negated_facts(reader, one, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        none = [Facts()] if keyword in schema else []
        for one in part.listed(keyword):
            negated = negated_facts(reader, one, depth + 1)
            none = [facts.merged(other) for facts in none for other in negated][:64]
        found += none
    return [*found, *(reader.read(part.under("not")) if "not" in schema else ())]


def _negated_keywords(reader: SchemaReader, part: Part) -> Iterator[Facts]:
    schema, stated = part.schema, reader.keywords.facts(part)
    if "type" in schema:
        null = {"null"} if schema.get("nullable") is True else frozenset[str]()
        yield Facts(types=TYPES - types_named(schema["type"]) - null)
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
    for name, facts_of in _SIZED.items():
        if (least := int(schema.get(f"min{name}", 0))) > 0:
            yield facts_of((0, least - 1))
        if f"max{name}" in schema:
            yield facts_of((int(schema[f"max{name}"]) + 1, None))


def _negated_members(reader: SchemaReader, part: Part, depth: int) -> Iterator[Facts]:
    for members in reader.keywords.facts(part).members:
        for name, one in members.properties.items():
            if reader.is_negatable(one, depth + 1):
                opposite = reader.keep(Part({"not": one.schema}, one.path, one.open_refs))
                yield Facts(
                    types=_OBJECT, required=(name,), members=(Members({name: opposite}, lists=False),)
                )
