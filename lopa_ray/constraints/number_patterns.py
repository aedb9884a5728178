"""Regular expressions of numbers within bounds, and automata of multiples."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache

import numpy as np

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.regex import alternatives, integer_range

DIGITS = 15
"""Significant digits of a bounded number: different numbers of so many digits are different in double precision."""

DECIMALS = 6
"""Decimals of a bounded number; more, if its bounds have more."""


def decimal_range(
    minimum: Decimal | None, maximum: Decimal | None, *, above: bool, below: bool
) -> str | None:
    """An expression of numbers without exponent between two bounds; None if there are none.

    A bound of None means unbounded. `above` and `below` leave out minimum and maximum themselves. The numbers have up
    to `DIGITS` digits, so that the comparison is also true after they are rounded to double precision.
    """
    bounds = [bound for bound in (minimum, maximum) if bound is not None]
    whole = max((bound.adjusted() + 1 for bound in bounds), default=1)
    wanted = max(DECIMALS, *(1 - _exponent(bound) for bound in bounds), 0)
    decimals = max(0, min(DIGITS - max(whole, 1), wanted))
    unit = Decimal(1).scaleb(-decimals)
    most = 10**DIGITS - 1
    low, high = -most, most
    if minimum is not None:
        low = max(low, int((minimum / unit).to_integral_value(ROUND_CEILING)))
        low += above and low * unit == minimum
    if maximum is not None:
        high = min(high, int((maximum / unit).to_integral_value(ROUND_FLOOR)))
        high -= below and high * unit == maximum
    parts: list[str | None] = []
    if low < 0:
        negative = _magnitudes(max(1, -high), -low, decimals)
        parts += [f"-{negative}"] if negative else []
    if high >= 0:
        parts.append(_magnitudes(max(low, 0), high, decimals))
    return alternatives(parts)


def _exponent(number: Decimal) -> int:
    exponent = number.normalize().as_tuple().exponent
    assert isinstance(exponent, int)  # bounds are finite
    return exponent


def _magnitudes(low: int, high: int, decimals: int) -> str | None:
    """Numbers from `low` to `high`, both from 0 on and in units of the last decimal."""
    if low > high:
        return None
    if decimals == 0:
        return integer_range(low, high)
    unit = 10**decimals
    (first, first_rest), (last, last_rest) = divmod(low, unit), divmod(high, unit)
    nines = "9" * decimals
    start, stop = f"{first_rest:0{decimals}}", f"{last_rest:0{decimals}}"
    if first == last:
        return f"{first}{_fraction(start, stop)}"
    between = integer_range(first + 1, last - 1)
    return alternatives(
        [
            f"{first}{_fraction(start, nines)}",
            between and f"{between}{_fraction('0' * decimals, nines)}",
            f"{last}{_fraction('0' * decimals, stop)}",
        ]
    )


def _fraction(low: str, high: str) -> str:
    """The point and the decimals of numbers between two fractions; nothing, too, where 0 is one of them."""
    part = rf"\.{_decimals(low, high)}"
    return f"(?:{part})?" if not low.strip("0") else part


def _decimals(low: str, high: str) -> str:
    """One or more decimals, up to as many as the bounds have, whose value is between the two."""
    rest = len(low) - 1
    first, last = int(low[0]), int(high[0])
    if first == last:
        return low[0] + _further(low[1:], high[1:])
    parts = [low[0] + _further(low[1:], "9" * rest)]
    if first + 1 < last:
        parts.append(f"[{first + 1}-{last - 1}]" + _further("0" * rest, "9" * rest))
    parts.append(high[0] + _further("0" * rest, high[1:]))
    return f"(?:{'|'.join(parts)})"


def _further(low: str, high: str) -> str:
    if not low:
        return ""
    zeros, nines = not low.strip("0"), not high.strip("9")
    if zeros and nines:
        return f"[0-9]{{0,{len(low)}}}"
    return f"(?:{_decimals(low, high)})?" if zeros else _decimals(low, high)


@lru_cache
def multiples(divisor: int) -> ByteAutomaton:
    """The automaton of whole numbers that a positive number divides, with any leading zeros."""
    # States: the start, behind a minus, and the remainders of what was read.
    dead = divisor + 2
    transitions = np.full((dead + 1, 256), dead, np.int32)
    transitions[0, ord("-")] = 1
    digits = np.arange(10)
    transitions[:2, 0x30:0x3A] = 2 + digits % divisor
    remainders = np.arange(divisor)[:, None]
    transitions[2:dead, 0x30:0x3A] = 2 + (10 * remainders + digits) % divisor
    accepting = np.zeros(dead + 1, np.bool_)
    accepting[2] = True
    return ByteAutomaton(transitions, accepting)
