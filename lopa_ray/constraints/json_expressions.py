"""Expressions of JSON values, objects and arrays."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from lopa_ray.constraints.automaton_builder import build_automaton
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import (
    EMPTY,
    ByteClass,
    Choice,
    Embedded,
    Expression,
    Language,
    Repeat,
    Sequence,
    literal,
    optional,
)

SPACE = optional(literal(" "))
QUOTE, COMMA = literal('"'), literal(",")
_DIGIT = ByteClass(((0x30, 0x39),))
_CONTINUATION = ByteClass(((0x80, 0xBF),))


def _character(*ranges: tuple[int, int], then: int) -> Expression:
    """Characters in UTF-8: the ranges of the first bytes, and the number of free continuation bytes."""
    heads = [ByteClass((one,)) for one in ranges]
    return Sequence((*heads, *[_CONTINUATION] * then))


PLAIN_CHARACTER = Choice(
    (
        ByteClass(((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))),
        _character((0xC2, 0xC2), (0xA0, 0xBF), then=0),
        _character((0xC3, 0xDF), then=1),
        _character((0xE0, 0xE0), (0xA0, 0xBF), then=1),
        _character((0xE1, 0xEC), then=2),
        _character((0xED, 0xED), (0x80, 0x9F), then=1),
        _character((0xEE, 0xEF), then=2),
        _character((0xF0, 0xF0), (0x90, 0xBF), then=2),
        _character((0xF1, 0xF3), then=3),
        _character((0xF4, 0xF4), (0x80, 0x8F), then=2),
    )
)
"""A character that is written as itself: no quote, no backslash, no control character."""

_FREQUENT_CHARACTER = Choice(PLAIN_CHARACTER.parts[:-2])
"""Those up to U+3FFFF, which need fewer states."""

_ESCAPE = Sequence((literal("\\"), ByteClass(tuple((ord(sign), ord(sign)) for sign in '"\\/bfnrt'))))
CHARACTER = Choice((PLAIN_CHARACTER, _ESCAPE))
COUNTED_CHARACTER = Choice((_FREQUENT_CHARACTER, _ESCAPE))
"""A character of a string with a maximum length."""

STRING = Sequence((QUOTE, Repeat(CHARACTER, 0, None), QUOTE))

INTEGER = Sequence(
    (
        optional(literal("-")),
        Choice((literal("0"), Sequence((ByteClass(((0x31, 0x39),)), Repeat(_DIGIT, 0, None))))),
    )
)
_FRACTION = Sequence((literal("."), Repeat(_DIGIT, 1, None)))
_EXPONENT = Sequence(
    (
        ByteClass(((0x45, 0x45), (0x65, 0x65))),
        optional(ByteClass(((0x2B, 0x2B), (0x2D, 0x2D)))),
        Repeat(_DIGIT, 1, 2),
    )
)
NUMBER = Sequence((INTEGER, optional(_FRACTION), optional(_EXPONENT)))
BOOLEAN, NULL = Choice((literal("true"), literal("false"))), literal("null")


@lru_cache
def plain_text() -> ByteAutomaton:
    """The automaton of strings' insides without escapes."""
    return build_automaton(Repeat(PLAIN_CHARACTER, 0, None))


@lru_cache
def plain_text_of_length(minimum: int, maximum: int | None) -> ByteAutomaton:
    """Those with so many characters."""
    return build_automaton(
        Repeat(PLAIN_CHARACTER if maximum is None else _FREQUENT_CHARACTER, minimum, maximum)
    )


def string_of(inside: Language) -> Language:
    """A string, from the text between its quotes."""
    return None if inside is None else Sequence((QUOTE, inside, QUOTE))


def text_of(automaton: ByteAutomaton) -> Language:
    """The texts that an automaton accepts. A match is possible from each of its states."""
    return Embedded(automaton) if automaton.accepting.any() else None


@lru_cache
def any_value(depth: int) -> Expression:
    """Any JSON value with at most `depth` levels of nested objects and arrays."""
    return Choice((BOOLEAN, NULL, NUMBER, STRING, *([any_object(depth), any_array(depth)] if depth else [])))


@lru_cache
def any_object(depth: int) -> Expression:
    """An object of any members with at most `depth` levels, of which it is one."""
    return braces(_any_number_of(member(STRING, any_value(depth - 1))) if depth else EMPTY)


@lru_cache
def any_array(depth: int) -> Expression:
    """An array of any items with at most `depth` levels, of which it is one."""
    return brackets(_any_number_of(any_value(depth - 1)) if depth else EMPTY)


def member(key: Expression, value: Expression) -> Expression:
    """A member of an object."""
    return Sequence((key, SPACE, literal(":"), SPACE, value))


def braces(members: Expression) -> Expression:
    """An object, from its members."""
    return Sequence((literal("{"), SPACE, members, literal("}")))


def brackets(items: Expression) -> Expression:
    """An array, from its items."""
    return Sequence((literal("["), SPACE, items, literal("]")))


def uniform_list(part: Language, minimum: int, maximum: int | None) -> Language:
    """`minimum` to `maximum` parts with commas between, and a space or none behind each."""
    if part is None or maximum == 0:
        return EMPTY if minimum == 0 else None
    most = None if maximum is None else maximum - 1
    some = Sequence((part, SPACE, Repeat(_next(part), max(minimum - 1, 0), most)))
    return some if minimum else optional(some)


def _any_number_of(part: Expression) -> Expression:
    return optional(Sequence((part, SPACE, Repeat(_next(part), 0, None))))


def _next(part: Expression) -> Expression:
    """A further part of a list."""
    return Sequence((COMMA, SPACE, part, SPACE))


def choice_of_texts(texts: Iterable[str]) -> Language:
    """Any of these texts."""
    distinct = tuple(literal(text) for text in dict.fromkeys(texts))
    return Choice(distinct) if distinct else None
