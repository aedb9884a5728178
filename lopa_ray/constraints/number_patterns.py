"""Regular expressions of numbers within bounds, and automata of multiples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import lru_cache, partial

import numpy as np

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.schema_facts import Bound

DIGITS = 15  # numbers with so many significant digits are different in double precision, too
DECIMALS = 6  # or more, if the bounds have more


def _alternatives(parts: Iterable[str | None]) -> str | None:
    distinct = list(dict.fromkeys(part for part in parts if part is not None))
    return f"(?:{'|'.join(distinct)})" if distinct else None


def _signed(
    low: int | None, high: int | None, range_of: Callable[[int, int | None], str | None]
) -> str | None:
    """An expression of numbers from `low` to `high`; `range_of` makes one of numbers from 0 on."""
    parts: list[str | None] = []
    if low is None or low < 0:
        negative = range_of(1 if high is None or high >= 0 else -high, None if low is None else -low)
        parts.append(negative and f"-{negative}")
    if high is None or high >= 0:
        parts.append(range_of(max(low or 0, 0), high))
    return _alternatives(parts)


def integer_range(minimum: int | None, maximum: int | None) -> str | None:
    """An expression of whole numbers from `minimum` to `maximum` in JSON, None for unbounded; None if there are
    none."""
    return _signed(minimum, maximum, _natural_range)


def _natural_range(minimum: int, maximum: int | None) -> str | None:
    """One expression per number of digits, and, without `maximum`, one of all numbers with more digits."""
    parts = []
    longest = len(str(minimum if maximum is None else maximum))
    for digits in range(len(str(minimum)), longest + 1):
        low = max(minimum, 0 if digits == 1 else 10 ** (digits - 1))
        high = 10**digits - 1 if maximum is None else min(10**digits - 1, maximum)
        if low <= high:
            parts.append(_digits(str(low), str(high), fewest=digits))
    return _alternatives([*parts, f"[1-9][0-9]{{{longest},}}"] if maximum is None else parts)


def _digits(low: str, high: str, *, fewest: int = 1) -> str:
    """An expression of the digits from `low` to `high`, which are equally long. Zeros at the end may be left out as
    long as `fewest` digits are left."""
    rest = len(low) - 1
    zeros, nines = "0" * rest, "9" * rest
    if not rest:
        return f"[{low}-{high}]"
    first, last = int(low[0]), int(high[0])
    if first == last:
        return low[0] + _further(low[1:], high[1:], fewest - 1)
    parts = [low[0] + _further(low[1:], nines, fewest - 1)]
    if first + 1 < last:
        parts.append(f"[{first + 1}-{last - 1}]" + _further(zeros, nines, fewest - 1))
    parts.append(high[0] + _further(zeros, high[1:], fewest - 1))
    return f"(?:{'|'.join(parts)})"


def _further(low: str, high: str, fewest: int) -> str:
    if not low.strip("0") and not high.strip("9"):
        return f"[0-9]{{{max(fewest, 0)},{len(low)}}}"
    part = _digits(low, high, fewest=fewest)
    return f"(?:{part})?" if fewest <= 0 and not low.strip("0") else part


@lru_cache(1024)
def decimal_range(lower: Bound, upper: Bound) -> str | None:
    """An expression of numbers without exponent between two bounds, None for unbounded; None if there are none. They
    have up to `DIGITS` digits, so that the comparison is also true after they are rounded to double precision."""
    bounds = [bound[0] for bound in (lower, upper) if bound is not None]
    whole = max((bound.adjusted() + 1 for bound in bounds), default=1)
    wanted = max(DECIMALS, *(1 + len(f"{bound.normalize():f}".partition(".")[2]) for bound in bounds), 0)
    decimals = max(0, min(DIGITS - max(whole, 1), wanted))
    unit = Decimal(1).scaleb(-decimals)
    most = 10**DIGITS - 1
    low, high = -most, most
    if lower is not None:
        low = max(low, int((lower[0] / unit).to_integral_value(ROUND_CEILING)))
        low += lower[1] and low * unit == lower[0]
    if upper is not None:
        high = min(high, int((upper[0] / unit).to_integral_value(ROUND_FLOOR)))
        high -= upper[1] and high * unit == upper[0]
    return _signed(low, high, partial(_decimal_magnitudes, decimals))


def _decimal_magnitudes(decimals: int, low: int, high: int | None) -> str | None:
    """Numbers from `low` to `high`, both from 0 on and in units of the last decimal."""
    assert high is not None  # all bounds are known
    if low > high:
        return None
    if decimals == 0:
        return integer_range(low, high)
    unit, nines, zeros = 10**decimals, "9" * decimals, "0" * decimals
    (first, first_rest), (last, last_rest) = divmod(low, unit), divmod(high, unit)
    start, stop = f"{first_rest:0{decimals}}", f"{last_rest:0{decimals}}"
    if first == last:
        return f"{first}{_fraction(start, stop)}"
    between = integer_range(first + 1, last - 1)
    parts = [f"{first}{_fraction(start, nines)}", f"{last}{_fraction(zeros, stop)}"]
    return _alternatives([*parts, between and f"{between}{_fraction(zeros, nines)}"])


def _fraction(low: str, high: str) -> str:
    """The point and the decimals of numbers between two fractions; nothing, too, where 0 is one of them."""
    part = rf"\.{_digits(low, high)}"
    return f"(?:{part})?" if not low.strip("0") else part


@lru_cache
def multiples(divisor: int) -> ByteAutomaton:
    """The automaton of whole numbers that a positive number divides, with any leading zeros."""
    # States: the start, after a minus, and the remainders of the digits before.
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
