"""The expression of an array, from its facts."""

from __future__ import annotations

from collections.abc import Callable

from lopa_ray.constraints.automaton_builder import build_automaton
from lopa_ray.constraints.automaton_operations import intersection
from lopa_ray.constraints.expression import (
    EMPTY,
    ByteClass,
    Expression,
    Language,
    Repeat,
    Sequence,
    choice,
    sequence,
)
from lopa_ray.constraints.json_expressions import COMMA, QUOTE, SPACE, brackets, text_of, uniform_list
from lopa_ray.constraints.json_schema_keywords import schema_error
from lopa_ray.constraints.schema_facts import Facts, Parts

FIRST_CHARACTERS = (
    *(ByteClass(((digit, digit),)) for digit in range(ord("0"), ord("9") + 1)),
    *(ByteClass(((letter, letter), (letter + 32, letter + 32))) for letter in range(ord("A"), ord("Z") + 1)),
)
"""Kinds of first characters, in the order in which different strings begin with them."""


class ArrayBuilder:
    """Makes arrays from what gives their items."""

    def __init__(
        self,
        item: Callable[[Parts], Language],
        texts: Callable[[Parts], list[Expression] | None],
        is_string: Callable[[Parts], bool],
        count: int,
    ) -> None:
        """`item`: the expression of an item; `texts`: one of each of its values, if they are listed; `is_string`:
        whether all items are strings; `count`: the items that are counted."""
        self._item, self._texts, self._is_string, self._count = item, texts, is_string, count

    def array(self, facts: Facts) -> Language:
        """An array with these facts. Raises SettingsError for what is not supported, and TooManyStatesError."""
        length = max((len(items.prefix) for items in facts.items), default=0)
        maximum = None if facts.max_items is None else max(min(facts.max_items, self._count), facts.min_items)
        if (facts.contains or (facts.unique and maximum not in (0, 1))) and length:
            raise schema_error(
                facts.path, "contains and uniqueItems are not supported beside tuples; leave them out"
            )
        if facts.contains:
            return self._containing(facts, maximum)
        if facts.unique and maximum not in (0, 1):
            return _bracketed(self._unique(facts, maximum))
        return _bracketed(self._items(facts, length, maximum))

    def _items(self, facts: Facts, length: int, maximum: int | None) -> Language:
        """A tuple of `length` parts, and what follows it."""
        fixed: list[Expression] = []
        for at in range(length if maximum is None else min(length, maximum)):
            found = self._item(facts.item(at))
            if found is None:
                maximum = at
                break
            fixed.append(Sequence((found, SPACE)))
        if maximum is not None and maximum < facts.min_items:
            return None
        if not fixed:
            return uniform_list(self._item(facts.item(length)), facts.min_items, maximum)
        # A tuple has all of its parts, and further ones if the schema says what they are.
        left = None if maximum is None else maximum - len(fixed)
        missing = max(facts.min_items - len(fixed), 0)
        says = missing or any(items.rest and items.rest.schema not in (True, {}) for items in facts.items)
        rest = self._item(facts.item(length)) if says and left != 0 else None
        if missing and rest is None:
            return None
        more = EMPTY if rest is None else _more(rest, missing, left)
        return sequence(fixed[0], *(Sequence((COMMA, SPACE, one)) for one in fixed[1:]), more)

    def _containing(self, facts: Facts, maximum: int | None) -> Language:
        """The first item is the one that the array has to contain."""
        if len(facts.contains) > 1 or facts.unique:
            raise schema_error(
                facts.path, "contains is supported once and without uniqueItems; leave one out"
            )
        first, other = self._item((*facts.item(0), *facts.contains)), self._item(facts.item(0))
        if first is None or other is None or maximum == 0:
            return None
        more = _more(other, max(facts.min_items - 1, 0), None if maximum is None else maximum - 1)
        return brackets(Sequence((first, SPACE, more)))

    def _unique(self, facts: Facts, maximum: int | None) -> Language:
        """Different items: listed values in their order, strings in that of their first characters, or at most one."""
        parts = facts.item(0)
        listed, item = self._texts(parts), self._item(parts)
        if listed is None and item is not None and self._is_string(parts):
            automaton = build_automaton(item)
            anything = Repeat(ByteClass(((0, 255),)), 0, None)
            kinds = [build_automaton(Sequence((QUOTE, first, anything))) for first in FIRST_CHARACTERS]
            languages = [text_of(intersection(automaton, kind)) for kind in kinds]
            listed = [language for language in languages if language is not None]
        if listed is not None:
            return _in_order(listed, facts.min_items, maximum)
        if facts.min_items > 1:
            raise schema_error(
                facts.path, "uniqueItems with minItems above 1 is supported for strings and listed values"
            )
        return uniform_list(item, facts.min_items, 1)


def _bracketed(items: Language) -> Language:
    return None if items is None else brackets(items)


def _more(item: Expression, minimum: int, maximum: int | None) -> Expression:
    """Further items."""
    return Repeat(Sequence((COMMA, SPACE, item, SPACE)), minimum, maximum)


def _in_order(listed: list[Expression], minimum: int, maximum: int | None) -> Language:
    """`minimum` to `maximum` of the listed ones in their order, each at most once."""
    counted = max(minimum, 1) if maximum is None else min(maximum, max(len(listed), 1))
    rests: list[Language] = [EMPTY if count >= minimum else None for count in range(counted + 1)]
    for one in reversed(listed):
        taken = [
            None
            if count == counted and maximum is not None
            else sequence(
                Sequence((COMMA, SPACE)) if count else EMPTY, one, SPACE, rests[min(count + 1, counted)]
            )
            for count in range(counted + 1)
        ]
        rests = [choice(both) for both in zip(taken, rests, strict=True)]
    return rests[0]
