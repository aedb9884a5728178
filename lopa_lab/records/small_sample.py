"""What is said of a score over few problems."""

from __future__ import annotations

import math

LARGEST_ERROR = 4.0
"""In points; 157 problems have it if half of them are solved."""


def small_sample_note(problems: int, percent: float | None = None) -> str | None:
    """A sentence if a score over so few problems says little: that its standard error exceeds 4 points. Otherwise None.

    `percent`: the score; half of the problems if it is None. The error is the root of p (1 - p) ÷ n, with the p of two
    more solved and two more unsolved problems (Agresti and Coull, 1998), so that a score of 0 or 100 has one.
    """
    if not problems:
        return None
    solved = problems * (50.0 if percent is None else percent) / 100
    share = (solved + 2) / (problems + 4)
    error = 100 * math.sqrt(share * (1 - share) / problems)
    if error <= LARGEST_ERROR:
        return None
    noun = "problem is" if problems == 1 else "problems are"
    return f"{problems} {noun} too few: a score over them has a standard error of about {error:.0f} points."
