"""Expressions of JSON values, objects and arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence as Items
from functools import lru_cache

from lopa_ray.constraints.automaton_builder import build_automaton
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import (
    EMPTY,
    Choice,
    Embedded,
    Expression,
    Language,
    Repeat,
    Sequence,
    choice,
    literal,
    optional,
    sequence,
)


def _matching(regex: str) -> Expression:
    return Embedded(ByteAutomaton.from_regex(regex, trusted=True))


SPACE = optional(literal(" "))
QUOTE, COMMA = literal('"'), literal(",")

_ESCAPED = r'\x00-\x1f"\\\x7f-\x{9f}'
PLAIN_CHARACTER = _matching(f"[^{_ESCAPED}]")
_FREQUENT_CHARACTER = _matching(rf"[^{_ESCAPED}\x{{40000}}-\x{{10ffff}}]")  # these need fewer states
_ESCAPE = _matching(r'\\["\\/bfnrt]')
CHARACTER = Choice((PLAIN_CHARACTER, _ESCAPE))
COUNTED_CHARACTER = Choice((_FREQUENT_CHARACTER, _ESCAPE))  # of a string with a maximum length
STRING = Sequence((QUOTE, Repeat(CHARACTER, 0, None), QUOTE))

INTEGER = _matching("-?(?:0|[1-9][0-9]*)")
NUMBER = _matching(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,2})?")
BOOLEAN, NULL = Choice((literal("true"), literal("false"))), literal("null")


@lru_cache
def plain_text() -> ByteAutomaton:
    return build_automaton(Repeat(PLAIN_CHARACTER, 0, None))


@lru_cache
def plain_text_of_length(minimum: int, maximum: int | None) -> ByteAutomaton:
    """The automaton of strings' insides with so many characters, none of them escaped."""
    return build_automaton(
        Repeat(PLAIN_CHARACTER if maximum is None else _FREQUENT_CHARACTER, minimum, maximum)
    )


def string_of(inside: Language) -> Language:
    return None if inside is None else Sequence((QUOTE, inside, QUOTE))


def text_of(automaton: ByteAutomaton) -> Language:
    """The texts that an automaton accepts. A match is possible from each of its states."""
    return Embedded(automaton) if automaton.accepting.any() else None


@lru_cache
def any_value(depth: int) -> Expression:
    """`depth`: levels of nested objects and arrays, as below."""
    return Choice((BOOLEAN, NULL, NUMBER, STRING, *([any_object(depth), any_array(depth)] if depth else [])))


@lru_cache
def any_object(depth: int) -> Expression:
    inside = uniform_list(member(STRING, any_value(depth - 1)) if depth else None, 0, None)
    return braces(inside or EMPTY)


@lru_cache
def any_array(depth: int) -> Expression:
    return brackets(uniform_list(any_value(depth - 1) if depth else None, 0, None) or EMPTY)


def member(key: Expression, value: Expression) -> Expression:
    return Sequence((key, SPACE, literal(":"), SPACE, value))


def braces(members: Expression) -> Expression:
    return Sequence((literal("{"), SPACE, members, literal("}")))


def brackets(items: Expression) -> Expression:
    return Sequence((literal("["), SPACE, items, literal("]")))


def more(part: Expression, minimum: int, maximum: int | None) -> Expression:
    return Repeat(Sequence((COMMA, SPACE, part, SPACE)), minimum, maximum)


def uniform_list(part: Language, minimum: int, maximum: int | None) -> Language:
    """`minimum` to `maximum` parts with commas between, and a space or none after each."""
    if part is None or maximum == 0:
        return EMPTY if minimum == 0 else None
    some = Sequence((part, SPACE, more(part, max(minimum - 1, 0), None if maximum is None else maximum - 1)))
    return some if minimum else optional(some)


def list_in_order(
    parts: Items[tuple[Expression, bool]], minimum: int, maximum: int | None, other: Language = None
) -> Language:
    """`minimum` to `maximum` of the parts in their order, each at most once, and then any number of `other`. True: the
    part is needed. The others may be equal, and count as one for the minimum."""

    def begun(count: int, *rest: Language) -> Language:
        return sequence(Sequence((COMMA, SPACE)) if count else EMPTY, *rest)

    def end(count: int) -> Language:
        most = None if maximum is None else maximum - count - 1
        found: list[Language] = [EMPTY if count >= minimum else None]
        if other is not None and count + 1 >= minimum and (most is None or most >= 0):
            found.append(begun(count, other, SPACE, more(other, 0, most)))
        return choice(found)

    # Parts are counted as far as their number makes a difference.
    counts = range(min(max(minimum if maximum is None else maximum, 1), len(parts) + 1) + 1)
    rests = [end(count) for count in counts]
    for part, needed in reversed(parts):
        taken = [
            None if count == maximum else begun(count, part, SPACE, rests[min(count + 1, counts[-1])])
            for count in counts
        ]
        rests = taken if needed else [choice(both) for both in zip(taken, rests, strict=True)]
    return rests[0]


def choice_of_texts(texts: Iterable[str]) -> Language:
    return choice(literal(text) for text in dict.fromkeys(texts))
