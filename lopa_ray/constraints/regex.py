"""Regular expressions for literal texts, alternatives and ranges of whole numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable


def literal(text: str) -> str:
    """An expression that matches exactly `text`."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def alternatives(parts: Iterable[str | None]) -> str | None:
    """An expression that matches any of `parts`, of which None matches nothing; None if all parts are None."""
    distinct = list(dict.fromkeys(part for part in parts if part is not None))
    return f"(?:{'|'.join(distinct)})" if distinct else None


def integer_range(minimum: int | None, maximum: int | None) -> str | None:
    """An expression for whole numbers from `minimum` to `maximum` in JSON; None if the range is empty.

    A bound of None means unbounded.
    """
    parts: list[str] = []
    if minimum is None or minimum < 0:
        below = 1 if maximum is None or maximum >= 0 else -maximum
        parts += [f"-{part}" for part in _natural_range(below, None if minimum is None else -minimum)]
    if maximum is None or maximum >= 0:
        parts += _natural_range(max(minimum or 0, 0), maximum)
    return alternatives(parts)


def _natural_range(minimum: int, maximum: int | None) -> list[str]:
    """One expression per number of digits, and, without `maximum`, one for all numbers with more digits."""
    parts = []
    digits = len(str(minimum))
    while maximum is None or digits <= len(str(maximum)):
        first, last = (0 if digits == 1 else 10 ** (digits - 1)), 10**digits - 1
        low, high = max(first, minimum), last if maximum is None else min(last, maximum)
        if low <= high:
            parts.append(_same_length_range(str(low), str(high)))
        if maximum is None:
            return [*parts, f"[1-9][0-9]{{{digits},}}"]
        digits += 1
    return parts


def _same_length_range(low: str, high: str) -> str:
    """An expression for the numbers from `low` to `high`, which have the same number of digits."""
    rest = len(low) - 1
    if not low:
        return ""
    if low[1:] == "0" * rest and high[1:] == "9" * rest:
        return f"[{low[0]}-{high[0]}]" + (f"[0-9]{{{rest}}}" if rest else "")
    if low[0] == high[0]:
        return low[0] + _same_length_range(low[1:], high[1:])
    first, last = int(low[0]), int(high[0])
    parts = [low[0] + _same_length_range(low[1:], "9" * rest)]
    if first + 1 < last:
        parts.append(f"[{first + 1}-{last - 1}][0-9]{{{rest}}}")
    parts.append(high[0] + _same_length_range("0" * rest, high[1:]))
    return f"(?:{'|'.join(parts)})"
