"""Expressions of strings and numbers, from their facts."""

from __future__ import annotations

import json
from functools import lru_cache
from math import lcm

from lopa_ray.constraints.automaton_builder import build_automaton
from lopa_ray.constraints.automaton_operations import difference, intersection, minimized
from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import Language, Repeat
from lopa_ray.constraints.json_expressions import (
    CHARACTER,
    COUNTED_CHARACTER,
    INTEGER,
    NUMBER,
    choice_of_texts,
    plain_text_of_length,
    text_of,
)
from lopa_ray.constraints.number_patterns import decimal_range, integer_range, multiples
from lopa_ray.constraints.schema_facts import Bound, Facts, type_of
from lopa_ray.constraints.string_formats import STRING_FORMATS
from lopa_ray.constraints.string_pattern import matching_text

MAX_DIVISOR = 10_000  # the largest number of which all multiples are recognised


@lru_cache(1024)
def _regex_automaton(regex: str) -> ByteAutomaton:
    return minimized(ByteAutomaton.from_regex(regex, trusted=True))


def string_inside(facts: Facts, count: int) -> Language:
    """The text between the quotes of a string. `count`: the maximum length that is counted; larger lengths are cut to
    it. Raises TooManyStatesError."""
    minimum, maximum = facts.length
    if maximum is not None:
        maximum = max(minimum, min(maximum, count))
    excluded = tuple(value for value in facts.excluded if type_of(value) == "string")
    if not (facts.patterns or facts.formats or excluded):
        return Repeat(CHARACTER if maximum is None else COUNTED_CHARACTER, minimum, maximum)
    wanted = tuple(pattern for pattern, needed in facts.patterns if needed)
    unwanted = tuple(pattern for pattern, needed in facts.patterns if not needed)
    matching = matching_text(wanted, unwanted, excluded)
    return text_of(_limited_text(matching, facts.formats, minimum, maximum))


@lru_cache(1024)
def _limited_text(
    found: ByteAutomaton, formats: tuple[str, ...], minimum: int, maximum: int | None
) -> ByteAutomaton:
    for name in formats:
        found = intersection(found, _regex_automaton(STRING_FORMATS[name]))
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
    if bound is None:
        return None
    number, exclusive = bound
    whole = int(number.to_integral_value("ROUND_CEILING" if up else "ROUND_FLOOR"))
    return whole + (1 if up else -1) * (exclusive and whole == number)


def number(facts: Facts) -> Language:
    """Numbers within bounds have no exponent and few decimals; multiples, and numbers without certain others, are
    whole. Raises TooManyStatesError."""
    if facts.multiples or any(type_of(value) in ("integer", "fraction") for value in facts.excluded):
        return integer(facts)
    if facts.lower is None and facts.upper is None:
        return NUMBER
    regex = decimal_range(facts.lower, facts.upper)
    return None if regex is None else text_of(_regex_automaton(regex))
