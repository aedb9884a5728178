"""The expression of an object, from its facts: the listed members in order, and then those with other names."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import lru_cache

from lopa_ray.constraints.automaton_builder import build_automaton
from lopa_ray.constraints.automaton_operations import accepts, difference, intersection
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import (
    EMPTY,
    Expression,
    Language,
    Repeat,
    Sequence,
    choice,
    literal,
    sequence,
)
from lopa_ray.constraints.json_expressions import (
    COMMA,
    SPACE,
    STRING,
    braces,
    choice_of_texts,
    member,
    plain_text,
    string_of,
    text_of,
)
from lopa_ray.constraints.schema_facts import Facts, Members, Parts, inside_of
from lopa_ray.constraints.string_pattern import pattern_automaton

MAX_UNSORTED = 24
"""Objects with more members that may be left out have all members in the order of the alphabet, which needs far fewer
states: what may follow a name is then the same, whatever was left out before it."""

MAX_GROUPS = 16
"""Kinds of other names that an object has at most, by the patterns that they match."""


def object_expression(
    facts: Facts, value: Callable[[Parts], Language], names: ByteAutomaton | None
) -> Language:
    """An object with these facts. `value`: the expression of a member's value; `names`: all names that members may
    have, between their quotes, or None. Raises TooManyStatesError."""
    listed = [name for members in facts.members if members.lists for name in members.properties]
    pairs: list[tuple[str, Expression, bool]] = []
    for name in dict.fromkeys([*listed, *facts.required]):
        needed = name in facts.required
        allowed = name not in facts.absent and _is_allowed(name, names)
        found = value(facts.of(name)) if allowed else None
        if found is not None:
            pairs.append((name, member(literal(json.dumps(name, ensure_ascii=False)), found), needed))
        elif needed:
            return None
    if sum(not needed for _, _, needed in pairs) > MAX_UNSORTED:
        pairs.sort(key=lambda pair: inside_of(pair[0]))
    others = _other_members(facts, value, names, [name for name, _, _ in pairs])
    members = _MemberList([(pair, needed) for _, pair, needed in pairs], others, facts)
    inside = members.rest(0, 0)
    return None if inside is None else braces(inside)


def _is_allowed(name: str, names: ByteAutomaton | None) -> bool:
    return names is None or accepts(names, inside_of(name))


class _MemberList:
    """The members of an object from each place on."""

    def __init__(self, pairs: list[tuple[Expression, bool]], others: Language, facts: Facts) -> None:
        self._pairs, self._others = pairs, others
        self._minimum, self._maximum = facts.min_properties, facts.max_properties
        # Members are counted as far as the number makes a difference.
        self._most = max(self._minimum, 1) if self._maximum is None else max(self._maximum, 1)
        self._known: dict[tuple[int, int], Language] = {}

    def rest(self, at: int, count: int) -> Language:
        """The members from index `at` on, after `count` ones."""
        if (at, count) not in self._known:
            self._known[at, count] = self._rest(at, count)
        return self._known[at, count]

    def _rest(self, at: int, count: int) -> Language:
        if at == len(self._pairs):
            return choice([EMPTY if count >= self._minimum else None, self._further(count)])
        pair, needed = self._pairs[at]
        taken = None
        if self._maximum is None or count < self._maximum:
            taken = sequence(self._comma(count), pair, SPACE, self.rest(at + 1, min(count + 1, self._most)))
        return taken if needed else choice([taken, self.rest(at + 1, count)])

    def _further(self, count: int) -> Language:
        """One or more members with other names. They may have the same name, and so count as one."""
        most = None if self._maximum is None else self._maximum - count - 1
        if self._others is None or count + 1 < self._minimum or (most is not None and most < 0):
            return None
        one = Sequence((self._others, SPACE))
        return sequence(self._comma(count), one, Repeat(Sequence((COMMA, SPACE, one)), 0, most))

    def _comma(self, count: int) -> Expression:
        return Sequence((COMMA, SPACE)) if count else EMPTY


def _other_members(
    facts: Facts, value: Callable[[Parts], Language], names: ByteAutomaton | None, listed: list[str]
) -> Language:
    """A member with a name that is not listed; None if the schema lists names and says nothing about others."""
    own = [members for members in facts.members if members.lists]
    says = any(members.patterns or _limits(members) for members in own)
    lists = any(members.properties or members.additional is None for members in own)
    if lists and not says:
        return None
    groups = [_groups(members) for members in facts.members]
    found = []
    for chosen in itertools.islice(itertools.product(*groups), MAX_GROUPS):
        inner = value(tuple(part for group in chosen for part in group[2]))
        if inner is None:
            continue
        wanted = tuple(pattern for group in chosen for pattern in group[0])
        unwanted = tuple(pattern for group in chosen for pattern in group[1])
        known = [*listed, *facts.absent, *(name for members in facts.members for name in members.properties)]
        key: Language = STRING
        if wanted or unwanted or known or names is not None:
            automaton = _names(wanted, unwanted, tuple(dict.fromkeys(known)))
            key = string_of(text_of(automaton if names is None else intersection(automaton, names)))
        found.append(None if key is None else member(key, inner))
    return choice(found)


@lru_cache(1024)
def _names(wanted: tuple[str, ...], unwanted: tuple[str, ...], known: tuple[str, ...]) -> ByteAutomaton:
    """What is between the quotes of names that match all `wanted` patterns, no `unwanted` ones, and are not known."""
    found = plain_text()
    for pattern in wanted:
        found = intersection(found, pattern_automaton(pattern))
    for pattern in unwanted:
        found = difference(found, pattern_automaton(pattern, wide=True))
    texts = choice_of_texts(inside_of(name).decode() for name in known)
    return found if texts is None else difference(found, build_automaton(texts))


def _limits(members: Members) -> bool:
    """Whether `additionalProperties` has a schema."""
    return members.additional is not None and members.additional.schema not in (True, {})


def _groups(members: Members) -> list[tuple[list[str], list[str], Parts]]:
    """The kinds of names that no property has: which patterns they match, which not, and what their values are."""
    patterns = [pattern for pattern, _ in members.patterns]
    found = [
        ([pattern], patterns[:at] + patterns[at + 1 :], (part,))
        for at, (pattern, part) in enumerate(members.patterns)
    ]
    return [*found, ([], patterns, () if members.additional is None else (members.additional,))]
