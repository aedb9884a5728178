"""Facts: one alternative of a schema, with references followed and combinations of schemas written out."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import Any, TypeAlias

from lopa_ray.constraints.automaton_operations import accepts
from lopa_ray.constraints.json_expressions import plain_text
from lopa_ray.constraints.string_pattern import pattern_automaton

TYPES = frozenset({"object", "array", "string", "integer", "fraction", "boolean", "null"})
"""The types of values. A number is an integer or a fraction."""

Bound: TypeAlias = tuple[Decimal, bool] | None
"""A bound of numbers, and whether it is itself left out."""

Size: TypeAlias = tuple[int, int | None]
"""Minimum and maximum. A maximum of None means unbounded."""

ANY_SIZE: Size = (0, None)
BOTH = "both"


@dataclass(frozen=True, slots=True)
class Part:
    """`open_refs`: the references that were followed to it."""

    schema: Any
    path: str
    open_refs: tuple[str, ...] = ()

    def key(self) -> tuple[int, tuple[str, ...]]:
        """Schemas in a document are compared by identity."""
        return id(self.schema), self.open_refs

    def under(self, keyword: str) -> Part:
        """The schema that a keyword has; without the keyword a schema that allows everything."""
        return Part(self.schema.get(keyword, True), f"{self.path}.{keyword}", self.open_refs)

    def listed(self, keyword: str) -> Parts:
        schemas = self.schema.get(keyword)
        return tuple(
            Part(one, f"{self.path}.{keyword}[{at}]", self.open_refs)
            for at, one in enumerate(schemas if isinstance(schemas, list) else ())
        )

    def named(self, keyword: str) -> dict[str, Part]:
        prefix = self.path if keyword == "properties" else f"{self.path}.{keyword}"
        schemas = self.schema.get(keyword, {}).items()
        return {name: Part(one, f"{prefix}.{name}", self.open_refs) for name, one in schemas}


Parts: TypeAlias = tuple[Part, ...]  # parts under all of which a value is valid


@dataclass(frozen=True, slots=True)
class Members:
    properties: Mapping[str, Part] = field(default_factory=dict)
    patterns: tuple[tuple[str, Part], ...] = ()
    additional: Part | None = None
    """The schema of names that are neither in `properties` nor match `patterns`; None allows everything."""
    lists: bool = True
    """Whether answers may have these members: a `not` about a member is not a reason to write one."""

    def of(self, name: str) -> Iterator[Part]:
        """The parts under which the value of a member with this name has to be valid."""
        found = [self.properties[name]] if name in self.properties else []
        found += [part for pattern, part in self.patterns if may_match(name, pattern)]
        yield from found or ([] if self.additional is None else [self.additional])


@dataclass(frozen=True, slots=True)
class Items:
    prefix: Parts = ()
    rest: Part | None = None  # for the items after the prefix; None allows everything


def _distinct(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(first + second))


def common_values(first: tuple[Any, ...] | None, second: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """The values of both lists, of which None has all."""
    if first is None or second is None:
        return first if second is None else second
    known = {canonical(value) for value in second}
    return tuple(value for value in first if canonical(value) in known)


def _size_of_both(first: Size, second: Size) -> Size:
    maxima = [size[1] for size in (first, second) if size[1] is not None]
    return max(first[0], second[0]), min(maxima, default=None)


def _larger(*bounds: Bound) -> Bound:
    return max(filter(None, bounds), default=None)


def smaller_bound(*bounds: Bound) -> Bound:
    return min(filter(None, bounds), key=lambda bound: (bound[0], not bound[1]), default=None)


@dataclass(frozen=True, slots=True)
class Facts:
    """All of this holds for a value. Facts about another type than its own have no effect on it. A field's metadata has
    the function that makes one fact of two which hold together, if that is not their sum."""

    types: frozenset[str] = field(default=TYPES, metadata={BOTH: operator.and_})
    values: tuple[Any, ...] | None = field(default=None, metadata={BOTH: common_values})
    """The only values; None allows all."""
    excluded: tuple[Any, ...] = ()
    members: tuple[Members, ...] = ()
    required: tuple[str, ...] = field(default=(), metadata={BOTH: _distinct})
    absent: frozenset[str] = field(default=frozenset(), metadata={BOTH: operator.or_})
    names: Parts = ()
    """The parts under which names of members have to be valid."""
    num_properties: Size = field(default=ANY_SIZE, metadata={BOTH: _size_of_both})
    items: tuple[Items, ...] = ()
    contains: Parts = ()
    num_items: Size = field(default=ANY_SIZE, metadata={BOTH: _size_of_both})
    unique: bool = field(default=False, metadata={BOTH: operator.or_})
    patterns: tuple[tuple[str, bool], ...] = field(default=(), metadata={BOTH: _distinct})
    """Patterns, and whether a string has to match them or must not."""
    formats: tuple[str, ...] = field(default=(), metadata={BOTH: _distinct})
    length: Size = field(default=ANY_SIZE, metadata={BOTH: _size_of_both})
    lower: Bound = field(default=None, metadata={BOTH: _larger})
    upper: Bound = field(default=None, metadata={BOTH: smaller_bound})
    multiples: tuple[Decimal, ...] = ()
    path: str = field(default="", metadata={BOTH: lambda first, second: first or second})

    @property
    def impossible(self) -> bool:
        """Whether it is plain that no value has all of these facts."""
        return not self.types or self.values == ()

    def merged(self, other: Facts) -> Facts:
        both = {
            name: together(getattr(self, name), getattr(other, name)) for name, together in _TOGETHER.items()
        }
        return Facts(**both).consistent()

    def consistent(self) -> Facts:
        """The same, without types and values that contradict the rest."""
        least, most = self.num_properties
        required = (max(least, len(self.required)), most)
        sizes = {"object": required, "array": self.num_items, "string": self.length}
        impossible = {name for name, (least, most) in sizes.items() if most is not None and most < least}
        needed = [part.schema for name in self.required for part in self.of(name)]
        if self.absent & set(self.required) or any(schema is False for schema in needed):
            impossible.add("object")
        types, values = self.types - impossible, self.values
        if values is not None:
            banned = {canonical(value) for value in self.excluded}
            values = tuple(v for v in values if type_of(v) in types and canonical(v) not in banned)
        return replace(self, types=types, values=values)

    def closed(self) -> Facts:
        """The same with only members about which it says something (`unevaluatedProperties: false`)."""
        own = [members for members in self.members if members.lists]
        if any(members.additional is not None for members in own):
            return self
        anything, nothing = Part(True, self.path), Part(False, self.path)
        names = {name: anything for members in own for name in members.properties}
        patterns = tuple((pattern, anything) for members in own for pattern, _ in members.patterns)
        return self.merged(Facts(members=(Members(names, patterns, nothing),)))

    def of(self, name: str) -> Parts:
        """See `Members.of`."""
        return tuple(part for members in self.members for part in members.of(name))

    def item(self, at: int) -> Parts:
        """The parts under which the item at an index has to be valid."""
        found = [items.prefix[at] if at < len(items.prefix) else items.rest for items in self.items]
        return tuple(part for part in found if part is not None)


_TOGETHER: Mapping[str, Callable[[Any, Any], Any]] = {
    one.name: one.metadata.get(BOTH, operator.add) for one in fields(Facts)
}


def type_of(value: Any) -> str:
    """The type of a value of JSON. A number without a fraction, like 1.0, is an integer."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "fraction"
    return _TYPE_NAMES[type(value)]


_TYPE_NAMES = {
    type(None): "null", bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"
}  # fmt: skip


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
    """The bytes between the quotes of a string in JSON."""
    return json.dumps(name, ensure_ascii=False)[1:-1].encode()


def may_match(name: str, pattern: str) -> bool:
    """Whether any engine finds a pattern in a name. Names that JSON escapes may match everything."""
    inside = inside_of(name)
    return not accepts(plain_text(), inside) or accepts(pattern_automaton(pattern, wide=True), inside)
