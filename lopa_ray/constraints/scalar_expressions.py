"""Expressions of strings and numbers, from their facts."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache
from math import lcm

from lopa_ray.constraints.automaton_builder import build_automaton, minimized
from lopa_ray.constraints.automaton_operations import difference, intersection
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import Language, Repeat
from lopa_ray.constraints.json_expressions import (
    CHARACTER,
    COUNTED_CHARACTER,
    INTEGER,
    NUMBER,
    choice_of_texts,
    plain_text,
    plain_text_of_length,
    text_of,
)
from lopa_ray.constraints.number_patterns import decimal_range, multiples
from lopa_ray.constraints.regex import integer_range
from lopa_ray.constraints.schema_facts import Bound, Facts, inside_of, type_of
from lopa_ray.constraints.string_formats import STRING_FORMATS
from lopa_ray.constraints.string_pattern import pattern_automaton

MAX_DIVISOR = 10_000
"""Largest number of which multiples are recognised."""


@lru_cache(1024)
def _regex_automaton(regex: str) -> ByteAutomaton:
    return minimized(ByteAutomaton.from_regex(regex, trusted=True))


def string_inside(facts: Facts, count: int) -> Language:
    """The text between the quotes of a string. `count`: the maximum length that is counted; larger ones are cut to it.

    Raises TooManyStatesError.
    """
    maximum = None if facts.max_length is None else max(facts.min_length, min(facts.max_length, count))
    excluded = tuple(value for value in facts.excluded if type_of(value) == "string")
    if not (facts.patterns or facts.formats or excluded):
        return Repeat(CHARACTER if maximum is None else COUNTED_CHARACTER, facts.min_length, maximum)
    return text_of(_string_automaton(facts.patterns, facts.formats, excluded, facts.min_length, maximum))


@lru_cache(1024)
def _string_automaton(
    patterns: tuple[tuple[str, bool], ...],
    formats: tuple[str, ...],
    excluded: tuple[str, ...],
    minimum: int,
    maximum: int | None,
) -> ByteAutomaton:
    found = plain_text()
    for name in formats:
        found = intersection(found, _regex_automaton(STRING_FORMATS[name]))
    for pattern, wanted in patterns:
        if wanted:
            found = intersection(found, pattern_automaton(pattern))
        else:
            found = difference(found, pattern_automaton(pattern, wide=True))
    unwanted = choice_of_texts(inside_of(value).decode() for value in excluded)
    if unwanted is not None:
        found = difference(found, build_automaton(unwanted))
    if minimum or maximum is not None:
        found = intersection(found, plain_text_of_length(minimum, maximum))
    return found


def integer(facts: Facts) -> Language:
    """Whole numbers. Raises TooManyStatesError."""
    lower, upper = _whole_bound(facts.lower, up=True), _whole_bound(facts.upper, up=False)
    excluded = [json.dumps(int(value)) for value in facts.excluded if type_of(value) == "integer"]
    if lower is None and upper is None and not facts.multiples and not excluded:
        return INTEGER
    regex = integer_range(lower, upper)
    if regex is None:
        return None
    found = _regex_automaton(regex)
    if facts.multiples:
        # A whole number is a multiple of 2.5 if it is one of 5, and of 0.01 always.
        divisor = lcm(*(number.as_integer_ratio()[0] for number in facts.multiples))
        if divisor > MAX_DIVISOR:
            return _listed_multiples(divisor, lower, upper, excluded)
        found = intersection(found, multiples(divisor))
    unwanted = choice_of_texts([*excluded, *(["-0"] if "0" in excluded else [])])
    return text_of(found if unwanted is None else difference(found, build_automaton(unwanted)))


def _listed_multiples(divisor: int, lower: int | None, upper: int | None, excluded: list[str]) -> Language:
    """At most a hundred multiples of a large number."""
    if lower is None:
        lower = 0 if upper is None or upper >= 0 else upper - 99 * divisor
    first = -(-lower // divisor) * divisor
    last = first + 99 * divisor if upper is None else min(upper, first + 99 * divisor)
    numbers = map(str, range(first, last + 1, divisor))
    return choice_of_texts(number for number in numbers if number not in excluded)


def _whole_bound(bound: Bound, *, up: bool) -> int | None:
    """The first whole number within a bound."""
    if bound is None:
        return None
    number, exclusive = bound
    whole = int(number.to_integral_value("ROUND_CEILING" if up else "ROUND_FLOOR"))
    return whole + (1 if up else -1) * (exclusive and whole == number)


def number(facts: Facts) -> Language:
    """Numbers. Those within bounds have no exponent and few decimals; multiples, and those besides others, are whole.

    Raises TooManyStatesError.
    """
    if facts.multiples or any(type_of(value) in ("integer", "fraction") for value in facts.excluded):
        return integer(facts)
    if facts.lower is None and facts.upper is None:
        return NUMBER
    minimum, above = facts.lower or (None, False)
    maximum, below = facts.upper or (None, False)
    regex = _decimal_range(minimum, maximum, above, below)
    return None if regex is None else text_of(_regex_automaton(regex))


@lru_cache(1024)
def _decimal_range(minimum: Decimal | None, maximum: Decimal | None, above: bool, below: bool) -> str | None:
    return decimal_range(minimum, maximum, above=above, below=below)
