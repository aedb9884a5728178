"""Regular expressions of an adapter for paths of modules. One may take any time, so a process of its own matches."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lopa_ray.errors import CheckpointError
from lopa_ray.limited_process import LimitedProcess, ProcessLimitError

MATCH_S = 10.0
"""Processor time for all patterns and modules of a setting. Usual ones take milliseconds."""


class _Matcher:
    """What runs in the process."""

    def first(self, call: tuple[Sequence[str], Sequence[str]]) -> list[int | None]:
        """See `first_matches`."""
        compiled = []
        for pattern in call[0]:
            try:
                compiled.append(re.compile(rf"(.*\.)?({pattern})$"))
            except (re.error, OverflowError, RecursionError) as error:
                raise CheckpointError(
                    f"pattern {pattern[:200]!r}, not a regular expression ({error})"
                ) from None
        return [
            next((at for at, one in enumerate(compiled) if one.match(module)), None) for module in call[1]
        ]


def first_matches(patterns: Sequence[str], modules: Sequence[str]) -> list[int | None]:
    """Of each module's path the first pattern that matches its end, as PEFT looks for it; None if none does.

    Raises CheckpointError, which says what is wrong with the patterns, and OverloadedError.
    """
    if not patterns:
        return [None] * len(modules)
    process = LimitedProcess(_Matcher())
    try:
        found: list[int | None] = process.call("first", (patterns, modules), MATCH_S)
    except ProcessLimitError as error:
        raise CheckpointError(f"patterns that take too long ({error})") from None
    finally:
        process.close()
    return found
