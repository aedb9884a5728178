"""SchemaReader: a schema as alternatives of facts: references followed, combinations written out.

A value that has all facts of one alternative is valid. Not every valid value has all facts of one: a negation, for
example by `oneOf`, is replaced by something simpler that excludes the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from lopa_ray.constraints.automaton_builder import TooManyStatesError
from lopa_ray.constraints.json_schema_keywords import KeywordReader, schema_error
from lopa_ray.constraints.schema_exclusion import exclude_each_other
from lopa_ray.constraints.schema_facts import Facts, Part, Parts
from lopa_ray.constraints.schema_negation import negated_facts

MAX_ALTERNATIVES = 64  # of one schema; answers have no others
MAX_READ = 5_000  # schemas: references may multiply them


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of answers where a schema has none, or some that are too large to be counted. `recursion`: how often a
    reference is followed within itself; `references`: how many are followed within one another; `any_depth`: levels of
    objects and arrays where the schema does not define them (`{"type": "object"}` is one level); `count`: counted
    characters of strings with a maximum length, and counted items."""

    recursion: int
    references: int
    any_depth: int
    count: int


LIMITS = (
    Limits(recursion=3, references=24, any_depth=2, count=512),
    Limits(recursion=3, references=24, any_depth=2, count=128),
    Limits(recursion=2, references=10, any_depth=2, count=64),
    Limits(recursion=1, references=6, any_depth=1, count=64),
    Limits(recursion=1, references=4, any_depth=1, count=32),
    Limits(recursion=1, references=3, any_depth=0, count=16),
    Limits(recursion=1, references=2, any_depth=0, count=8),
)
"""Limits from the widest on: the first whose automaton is small enough is used."""


class SchemaReader:
    def __init__(self, root: Any, limits: Limits) -> None:
        self._root, self._limits = root, limits
        draft = str(root.get("$schema")) if isinstance(root, dict) else ""
        self.knows_const = "draft-04" not in draft and "draft-03" not in draft
        self.keywords = KeywordReader()
        self._known: dict[object, list[Facts]] = {}
        self._negations: dict[object, list[Facts]] = {}
        self._negatable: dict[int, bool] = {}
        self._made: list[Part] = []

    def alternatives(self, parts: Parts) -> list[Facts]:
        """The alternatives that a value valid under all `parts` may have. Raises SettingsError."""
        found = [Facts(path=parts[0].path if parts else "")]
        for part in parts:
            found = _combined(found, self.read(part))
        return found

    def keep(self, part: Part) -> Part:
        """Keeps a schema made here alive, because caches are keyed by `id(schema)`."""
        self._made.append(part)
        return part

    def is_negatable(self, part: Part, depth: int) -> bool:
        key = id(part.schema)
        if key not in self._negatable:
            self._negatable[key] = bool(negated_facts(self, part, depth))
        return self._negatable[key]

    def target(self, part: Part) -> Part:
        """The part to which a part's reference refers. Raises SettingsError."""
        given = part.schema["$ref"]
        own = self._root.get("$id", self._root.get("id")) if isinstance(self._root, dict) else None
        target = given
        if isinstance(given, str) and isinstance(own, str) and own.rstrip("#"):
            target = given.removeprefix(own.rstrip("#")) or "#"
        if not isinstance(target, str) or not target.startswith("#"):
            raise schema_error(
                part.path, f"$ref: got {given!r}; allowed: a place in this schema, as in #/$defs/name"
            )
        try:
            found = self._pointed(target, part.path) if target[1:2] in ("", "/") else self._anchored(target)
        except LookupError:
            raise schema_error(
                part.path, f"$ref: got {target!r}, which the schema does not contain; correct it"
            ) from None
        return Part(found, target, (*part.open_refs, target))

    def _pointed(self, target: str, path: str) -> Any:
        found = self._root
        for token in target[1:].split("/")[1:]:
            name = unquote(token).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal():
                found = found[int(name)]
            elif isinstance(found, dict):
                found = found[name]
            else:
                raise LookupError
            if isinstance(found, dict) and not str(found.get("$id", "#")).startswith("#"):
                raise schema_error(path, f"$ref: got {target!r}, which leads into a schema with its own $id")
        return found

    def _anchored(self, target: str) -> Any:
        """The schema with an anchor. Raises LookupError."""
        waiting = [self._root]
        while waiting:
            found = waiting.pop()
            if isinstance(found, dict):
                if found.get("$anchor") == target[1:] or target in (found.get("$id"), found.get("id")):
                    return found
                waiting += found.values()
            elif isinstance(found, list):
                waiting += found
        raise LookupError

    def read(self, part: Part) -> list[Facts]:
        """The alternatives of one part. Raises SettingsError, and TooManyStatesError for more than `MAX_READ` parts."""
        key = part.key()
        if key not in self._known:
            if len(self._known) == MAX_READ:
                raise TooManyStatesError
            self._known[key] = self._read(part)
        return self._known[key]

    def _read(self, part: Part) -> list[Facts]:
        schema, path = part.schema, part.path
        if schema is True:
            return [Facts()]
        if schema is False:
            return []
        if not isinstance(schema, dict):
            raise schema_error(path, f"got {schema!r}; allowed: an object, true or false")
        self._check_identity(part)
        found = _possible([self.keywords.facts(part)])
        for members in found[0].members if found else ():
            for pattern, _ in members.patterns:
                self.keywords.check_pattern(pattern, path)
        for alternatives in self._combinations(part):
            found = _combined(found, alternatives)
            if not found:
                break
        if "oneOf" in schema:
            found = self._one_of(found, part.listed("oneOf"), path)
        closed = schema.get("unevaluatedProperties") is False
        return [facts.closed() for facts in found] if closed else found

    def _check_identity(self, part: Part) -> None:
        """References below a schema with its own name are relative to that: raises SettingsError for such a schema."""
        schema = part.schema
        name = schema.get("$id", None if self.knows_const else schema.get("id"))
        if schema is self._root or not isinstance(name, str) or name.startswith("#"):
            return
        if '"$ref"' in json.dumps(schema):
            raise schema_error(
                part.path, f"got references in a schema with its own name, {name!r}; leave the name out"
            )

    def _combinations(self, part: Part) -> Iterable[list[Facts]]:
        """The alternatives of each keyword that combines schemas; a value has one of each."""
        schema = part.schema
        if "$ref" in schema:
            target = self.target(part)
            yield self.read(target) if self._may_follow(target.open_refs) else []
        for one in part.listed("allOf"):
            yield self.read(one)
        if "anyOf" in schema:
            yield [facts for one in part.listed("anyOf") for facts in self.read(one)]
        if "not" in schema:
            yield self._negated(part.under("not"), needed=True)
        if "if" in schema and ("then" in schema or "else" in schema):
            yield self._conditional(part)
        yield from self._dependencies(part)

    def _may_follow(self, open_refs: tuple[str, ...]) -> bool:
        limits = self._limits
        return len(open_refs) <= limits.references and open_refs.count(open_refs[-1]) <= limits.recursion

    def _one_of(self, stated: list[Facts], parts: Parts, path: str) -> list[Facts]:
        found = []
        for part in parts:
            own = _combined(stated, self.read(part))
            for other in parts:
                if own and other is not part and not exclude_each_other(self, part, other):
                    own = _combined(own, self._negated(other, needed=False))
            found += own
        if not found and any(_combined(stated, self.read(part)) for part in parts):
            raise schema_error(
                path,
                "oneOf: its schemas may be valid together; give them different types, or a property with different "
                "constants, or use anyOf",
            )
        return found[:MAX_ALTERNATIVES]

    def _negated(self, part: Part, *, needed: bool) -> list[Facts]:
        if part.key() not in self._negations:
            self._negations[part.key()] = _possible(negated_facts(self, part))
        found = self._negations[part.key()]
        if needed and not found:
            raise schema_error(
                part.path, "not: it is supported with simple schemas only; state what is allowed"
            )
        return found

    def _conditional(self, part: Part) -> list[Facts]:
        condition = part.under("if")
        holds = _combined(self.read(condition), self.read(part.under("then")))
        fails = self._negated(condition, needed=False)
        return holds + (_combined(fails, self.read(part.under("else"))) if fails else [])

    def _dependencies(self, part: Part) -> Iterable[list[Facts]]:
        lists: dict[str, tuple[str, ...]] = {}
        schemas: dict[str, Part] = {}
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, given in part.named(keyword).items():
                if isinstance(given.schema, str | list):
                    lists[name] = (given.schema,) if isinstance(given.schema, str) else tuple(given.schema)
                else:
                    schemas[name] = given
        for name in lists | schemas:
            needed = [Facts(required=(name,)).merged(Facts(required=lists.get(name, ())))]
            if name in schemas:
                needed = _combined(needed, self.read(schemas[name]))
            yield [*needed, Facts(absent=frozenset({name}))]


def _combined(first: list[Facts], second: list[Facts]) -> list[Facts]:
    return _possible([one.merged(other) for one in first for other in second])[:MAX_ALTERNATIVES]


def _possible(alternatives: list[Facts]) -> list[Facts]:
    return [facts for facts in alternatives if not facts.impossible]
