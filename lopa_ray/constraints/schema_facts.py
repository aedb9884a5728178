"""Facts: what one alternative of a schema says, with nothing left of references and combinations of schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeAlias

from lopa_ray.constraints.automaton_operations import accepts
from lopa_ray.constraints.json_expressions import plain_text
from lopa_ray.constraints.string_pattern import pattern_automaton

TYPES = frozenset({"object", "array", "string", "integer", "fraction", "boolean", "null"})
"""The types of values. A number is an integer or a fraction."""

NO_TYPES: frozenset[str] = frozenset()

Bound: TypeAlias = tuple[Decimal, bool] | None
"""A bound of numbers, and whether it is itself left out."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a schema: a value that is valid under it."""

    schema: Any
    path: str
    """Its place, for errors."""
    open_refs: tuple[str, ...] = ()
    """The references that were followed to it."""

    def key(self) -> tuple[int, tuple[str, ...]]:
        """What identifies it: schemas in a document are compared by identity."""
        return id(self.schema), self.open_refs


Parts: TypeAlias = tuple[Part, ...]
"""Parts under all of which a value is valid."""


@dataclass(frozen=True, slots=True)
class Members:
    """What a schema says about the members of an object."""

    properties: Mapping[str, Part] = field(default_factory=dict)
    patterns: tuple[tuple[str, Part], ...] = ()
    additional: Part | None = None
    """For names that are neither in `properties` nor match `patterns`; None allows everything."""
    lists: bool = True
    """Whether answers may have these members. What a `not` says about a member is no reason to write one."""

    def of(self, name: str) -> Iterator[Part]:
        """What the value of a member with this name has to be."""
        found = False
        if name in self.properties:
            found = True
            yield self.properties[name]
        for pattern, part in self.patterns:
            if may_match(name, pattern):
                found = True
                yield part
        if not found and self.additional is not None:
            yield self.additional


@dataclass(frozen=True, slots=True)
class Items:
    """What a schema says about the items of an array."""

    prefix: Parts = ()
    rest: Part | None = None
    """For the items behind the prefix; None allows everything."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All of this holds for a value. What concerns another type than its own has no effect on it."""

    types: frozenset[str] = TYPES
    values: tuple[Any, ...] | None = None
    """The only values; None allows all."""
    excluded: tuple[Any, ...] = ()
    members: tuple[Members, ...] = ()
    required: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    names: Parts = ()
    """What names of members have to be."""
    min_properties: int = 0
    max_properties: int | None = None
    items: tuple[Items, ...] = ()
    contains: Parts = ()
    min_items: int = 0
    max_items: int | None = None
    unique: bool = False
    patterns: tuple[tuple[str, bool], ...] = ()
    """Patterns, and whether a string has to match them or must not."""
    formats: tuple[str, ...] = ()
    min_length: int = 0
    max_length: int | None = None
    lower: Bound = None
    upper: Bound = None
    multiples: tuple[Decimal, ...] = ()
    path: str = ""

    @property
    def impossible(self) -> bool:
        """Whether it is plain that no value has all of these facts."""
        return not self.types or self.values == ()

    def merged(self, other: Facts) -> Facts:
        """The facts of values that have both."""
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            known = {canonical(value) for value in other.values}
            values = tuple(value for value in self.values if canonical(value) in known)
        if other == _NOTHING or self == _NOTHING:
            return replace(self if other == _NOTHING else other, path=self.path or other.path)
        both = Facts(
            types=self.types & other.types,
            values=values,
            excluded=self.excluded + other.excluded,
            members=self.members + other.members,
            required=tuple(dict.fromkeys(self.required + other.required)),
            absent=self.absent | other.absent,
            names=self.names + other.names,
            min_properties=max(self.min_properties, other.min_properties),
            max_properties=_least(self.max_properties, other.max_properties),
            items=self.items + other.items,
            contains=self.contains + other.contains,
            min_items=max(self.min_items, other.min_items),
            max_items=_least(self.max_items, other.max_items),
            unique=self.unique or other.unique,
            patterns=tuple(dict.fromkeys(self.patterns + other.patterns)),
            formats=tuple(dict.fromkeys(self.formats + other.formats)),
            min_length=max(self.min_length, other.min_length),
            max_length=_least(self.max_length, other.max_length),
            lower=max(filter(None, (self.lower, other.lower)), default=None),
            upper=min(
                filter(None, (self.upper, other.upper)),
                key=lambda bound: (bound[0], not bound[1]),
                default=None,
            ),
            multiples=self.multiples + other.multiples,
            path=self.path or other.path,
        )
        return both.consistent()

    def consistent(self) -> Facts:
        """The same, without types and values that contradict the rest."""
        types = self.types
        if (
            self.absent & set(self.required)
            or _below(self.max_properties, max(self.min_properties, len(self.required)))
            or any(part.schema is False for name in self.required for part in self.of(name))
        ):
            types -= {"object"}
        if _below(self.max_items, self.min_items):
            types -= {"array"}
        if _below(self.max_length, self.min_length):
            types -= {"string"}
        values = self.values
        if values is not None:
            banned = {canonical(value) for value in self.excluded}
            values = tuple(v for v in values if type_of(v) in types and canonical(v) not in banned)
        return (
            self
            if types == self.types and values == self.values
            else replace(self, types=types, values=values)
        )

    def closed(self) -> Facts:
        """The same without other members than those about which it says something (`unevaluatedProperties: false`)."""
        own = [members for members in self.members if members.lists]
        if any(members.additional is not None for members in own):
            return self
        names = {name: Part(True, self.path) for members in own for name in members.properties}
        patterns = tuple(
            (pattern, Part(True, self.path)) for members in own for pattern, _ in members.patterns
        )
        return self.merged(Facts(members=(Members(names, patterns, Part(False, self.path)),)))

    def of(self, name: str) -> Parts:
        """What the value of a member with this name has to be."""
        return tuple(part for members in self.members for part in members.of(name))

    def item(self, at: int) -> Parts:
        """What the item at an index has to be."""
        found = [items.prefix[at] if at < len(items.prefix) else items.rest for items in self.items]
        return tuple(part for part in found if part is not None)


_NOTHING = Facts()


def type_of(value: Any) -> str:
    """The type of a value of JSON. A number without a fraction, like 1.0, is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def canonical(value: Any) -> str:
    """The same text for equal values, and different texts for others."""
    return json.dumps(_without_point(value), sort_keys=True)


def _without_point(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_without_point(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_point(item) for name, item in value.items()}
    return value


def inside_of(name: str) -> bytes:
    """What is between the quotes of a string in JSON."""
    return json.dumps(name, ensure_ascii=False)[1:-1].encode()


def may_match(name: str, pattern: str) -> bool:
    """Whether any engine finds a pattern in a name. Names that JSON escapes may match everything."""
    inside = inside_of(name)
    return not accepts(plain_text(), inside) or accepts(pattern_automaton(pattern, wide=True), inside)


def _least(first: int | None, second: int | None) -> int | None:
    return min((bound for bound in (first, second) if bound is not None), default=None)


def _below(maximum: int | None, minimum: int) -> bool:
    return maximum is not None and maximum < minimum
