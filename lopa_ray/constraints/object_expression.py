"""The expression of an object, from its facts: the listed members in order, and then members with other names."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

from lopa_ray.constraints.automaton_builder import build_automaton
from lopa_ray.constraints.automaton_operations import accepts, intersection
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import Expression, Language, choice, literal
from lopa_ray.constraints.json_expressions import STRING, braces, list_in_order, member, string_of, text_of
from lopa_ray.constraints.schema_facts import Facts, Members, Parts, inside_of
from lopa_ray.constraints.string_pattern import matching_text

if TYPE_CHECKING:
    from lopa_ray.constraints.json_schema import SchemaCompiler

# Objects with more members that may be left out have all members in the order of the alphabet, which needs far fewer
# states: the same may then follow a name, whatever was left out before it.
MAX_UNSORTED = 24
MAX_GROUPS = 16  # kinds of other names in an object, by the patterns that they match


def object_expression(facts: Facts, compiler: SchemaCompiler) -> Language:
    """An object with these facts. Raises SettingsError and TooManyStatesError."""
    names = compiler.names(facts)
    listed = [name for members in facts.members if members.lists for name in members.properties]
    pairs: list[tuple[str, Expression, bool]] = []
    for name in dict.fromkeys([*listed, *facts.required]):
        needed = name in facts.required
        text = json.dumps(name, ensure_ascii=False)
        allowed = name not in facts.absent and (names is None or accepts(names, text.encode()))
        found = compiler.value(facts.of(name)) if allowed else None
        if found is not None:
            pairs.append((name, member(literal(text), found), needed))
        elif needed:
            return None
    if sum(not needed for _, _, needed in pairs) > MAX_UNSORTED:
        pairs.sort(key=lambda pair: inside_of(pair[0]))
    others = _other_members(facts, compiler, names, [name for name, _, _ in pairs])
    inside = list_in_order([(pair, needed) for _, pair, needed in pairs], *facts.num_properties, others)
    return None if inside is None else braces(inside)


def _other_members(
    facts: Facts, compiler: SchemaCompiler, names: ByteAutomaton | None, listed: list[str]
) -> Language:
    """A member with a name that is not listed; None if the schema lists names and says nothing about others."""
    own = [members for members in facts.members if members.lists]
    says = any(
        members.patterns or (members.additional and members.additional.schema not in (True, {}))
        for members in own
    )
    lists = any(members.properties or members.additional is None for members in own)
    if lists and not says:
        return None
    properties = [name for members in facts.members for name in members.properties]
    known = tuple(dict.fromkeys([*listed, *facts.absent, *properties]))
    found = []
    groups = itertools.product(*map(_groups, facts.members))
    for chosen in itertools.islice(groups, MAX_GROUPS):
        inner = compiler.value(tuple(part for _, _, parts in chosen for part in parts))
        if inner is None:
            continue
        wanted = tuple(pattern for patterns, _, _ in chosen for pattern in patterns)
        unwanted = tuple(pattern for _, patterns, _ in chosen for pattern in patterns)
        key: Language = STRING
        if wanted or unwanted or known or names is not None:
            key = string_of(text_of(matching_text(wanted, unwanted, known)))
        if key is not None and names is not None:
            key = text_of(intersection(build_automaton(key), names))
        found.append(None if key is None else member(key, inner))
    return choice(found)


def _groups(members: Members) -> list[tuple[list[str], list[str], Parts]]:
    """The kinds of names that no property has: the patterns that they match, the others, and their values' parts."""
    patterns = [pattern for pattern, _ in members.patterns]
    found = [
        ([pattern], patterns[:at] + patterns[at + 1 :], (part,))
        for at, (pattern, part) in enumerate(members.patterns)
    ]
    return [*found, ([], patterns, () if members.additional is None else (members.additional,))]
