"""The expression of an array, from its facts."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from string import ascii_uppercase, digits
from typing import TYPE_CHECKING

from lopa_ray.constraints.automaton_builder import build_automaton
from lopa_ray.constraints.automaton_operations import intersection
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import EMPTY, Expression, Language, Sequence, sequence
from lopa_ray.constraints.json_expressions import (
    COMMA,
    SPACE,
    brackets,
    list_in_order,
    more,
    text_of,
    uniform_list,
)
from lopa_ray.constraints.json_schema_keywords import schema_error
from lopa_ray.constraints.schema_facts import Facts, Size, canonical

if TYPE_CHECKING:
    from lopa_ray.constraints.json_schema import SchemaCompiler

FIRST_CHARACTERS = (*digits, *(letter + letter.lower() for letter in ascii_uppercase))
"""Kinds of first characters, in the order in which different strings begin with them."""


@lru_cache
def _strings_that_begin_with(characters: str) -> ByteAutomaton:
    return ByteAutomaton.from_regex(f'"[{characters}](?s:.)*', trusted=True)


def array_expression(facts: Facts, compiler: SchemaCompiler) -> Language:
    """An array with these facts. Raises SettingsError for facts that are not supported, and TooManyStatesError."""
    length = max((len(items.prefix) for items in facts.items), default=0)
    minimum, maximum = facts.num_items
    if maximum is not None:
        maximum = max(min(maximum, compiler.limits.count), minimum)
    unique = facts.unique and maximum not in (0, 1)
    if (facts.contains or unique) and length:
        raise schema_error(
            facts.path, "contains and uniqueItems are not supported beside tuples; leave them out"
        )
    if facts.contains:
        items = _containing(facts, compiler, (minimum, maximum))
    elif unique:
        items = _unique(facts, compiler, (minimum, maximum))
    else:
        items = _items(facts, compiler, length, (minimum, maximum))
    return None if items is None else brackets(items)


def _items(facts: Facts, compiler: SchemaCompiler, length: int, size: Size) -> Language:
    minimum, maximum = size
    fixed: list[Expression] = []
    for at in range(length if maximum is None else min(length, maximum)):
        found = compiler.value(facts.item(at))
        if found is None:
            maximum = at
            break
        fixed.append(Sequence((found, SPACE)))
    if maximum is not None and maximum < minimum:
        return None
    if not fixed:
        return uniform_list(compiler.value(facts.item(length)), minimum, maximum)
    # A tuple has all of its parts, and further items if the schema has a schema for them.
    left = None if maximum is None else maximum - len(fixed)
    missing = max(minimum - len(fixed), 0)
    says = missing or any(items.rest and items.rest.schema not in (True, {}) for items in facts.items)
    rest = compiler.value(facts.item(length)) if says and left != 0 else None
    if missing and rest is None:
        return None
    others = EMPTY if rest is None else more(rest, missing, left)
    return sequence(fixed[0], *(Sequence((COMMA, SPACE, one)) for one in fixed[1:]), others)


def _containing(facts: Facts, compiler: SchemaCompiler, size: Size) -> Language:
    """The first item has to be in the array."""
    minimum, maximum = size
    if len(facts.contains) > 1 or facts.unique:
        raise schema_error(facts.path, "contains is supported once and without uniqueItems; leave one out")
    first, other = compiler.value((*facts.item(0), *facts.contains)), compiler.value(facts.item(0))
    if first is None or other is None or maximum == 0:
        return None
    others = more(other, max(minimum - 1, 0), None if maximum is None else maximum - 1)
    return Sequence((first, SPACE, others))


def _unique(facts: Facts, compiler: SchemaCompiler, size: Size) -> Language:
    """Different items: listed values in their order, strings in the order of their first characters, or at most one."""
    item, kinds = compiler.value(facts.item(0)), compiler.reader.alternatives(facts.item(0))
    if all(kind.values is not None for kind in kinds):
        values: dict[str, Expression] = {}
        for kind in kinds:
            for value in kind.values or ():
                for expression in compiler.listed(replace(kind, values=(value,))):
                    values.setdefault(canonical(value), expression)
        listed = list(values.values())
    elif item is not None and all(kind.types == {"string"} for kind in kinds):
        automaton = build_automaton(item)
        starts = map(_strings_that_begin_with, FIRST_CHARACTERS)
        found = [text_of(intersection(automaton, start)) for start in starts]
        listed = [language for language in found if language is not None]
    elif size[0] > 1:
        raise schema_error(
            facts.path, "uniqueItems with minItems above 1 is supported for strings and listed values"
        )
    else:
        return uniform_list(item, size[0], 1)
    return list_in_order([(one, False) for one in listed], *size)
