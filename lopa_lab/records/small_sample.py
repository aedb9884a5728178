"""A note on a score over few problems."""

from __future__ import annotations

import math

LARGEST_ERROR = 4.0
"""Points of score; 157 problems have this error if half of them are solved."""


def small_sample_note(problems: int) -> str | None:
    """A sentence if a score over so few problems says little: that its standard error exceeds 4 points. Otherwise None.

    The error is for a score of 50: the root of n ÷ 4, in percent of n.
    """
    if not problems:
        return None
    error = 50 / math.sqrt(problems)
    if error <= LARGEST_ERROR:
        return None
    noun = "problem is" if problems == 1 else "problems are"
    return f"{problems} {noun} too few: a score over them has a standard error of about {error:.0f} points."
