"""Regular expressions for texts and whole numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable


def literal(text: str) -> str:
    """What matches `text` and nothing else."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)


def alternatives(parts: Iterable[str | None]) -> str | None:
    """What matches any of `parts`; None (which matches nothing) if all of them are."""
    found = list(dict.fromkeys(part for part in parts if part is not None))
    return f"(?:{'|'.join(found)})" if found else None


def integer_range(minimum: int | None, maximum: int | None) -> str | None:
    """Whole numbers from `minimum` to `maximum` (None: unbounded), as JSON writes them; None if there are none."""
    parts: list[str] = []
    if minimum is None or minimum < 0:
        below = 1 if maximum is None or maximum >= 0 else -maximum
        parts += [f"-{part}" for part in _natural_range(below, None if minimum is None else -minimum)]
    if maximum is None or maximum >= 0:
        parts += _natural_range(max(minimum or 0, 0), maximum)
    return alternatives(parts)


def _natural_range(minimum: int, maximum: int | None) -> list[str]:
    """One expression per number of digits, and one for all lengths that have no bound."""
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
    """Numbers of as many digits as `low` and `high` have."""
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
