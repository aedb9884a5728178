"""Limits: how much of a schema's answers an automaton has, where a schema allows them without end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What answers are limited to where a schema does not limit them, or has limits that are too large to be counted."""

    recursion: int
    """How often a reference is followed within itself."""
    any_depth: int
    """Levels of objects and arrays where the schema does not define them; `{"type": "object"}` is one level."""
    count: int
    """Characters of strings with a maximum length, and items, that are counted."""


LIMITS = (Limits(3, 2, 512), Limits(2, 2, 256), Limits(1, 1, 128), Limits(1, 1, 32), Limits(0, 0, 8))
"""From the widest on: the first whose automaton is small enough is taken."""
