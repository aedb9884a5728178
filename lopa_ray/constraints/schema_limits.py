"""Limits: how much of a schema's answers an automaton has, where a schema allows them without end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits answers where a schema does not, or has limits that are too large to be counted."""

    recursion: int
    """How often a reference is followed within itself."""
    references: int
    """How many references are followed within one another."""
    any_depth: int
    """Levels of objects and arrays where the schema does not define them; `{"type": "object"}` is one level."""
    count: int
    """Characters of strings with a maximum length, and items, that are counted."""


LIMITS = (
    Limits(recursion=3, references=24, any_depth=2, count=512),
    Limits(recursion=3, references=24, any_depth=2, count=128),
    Limits(recursion=2, references=10, any_depth=2, count=64),
    Limits(recursion=1, references=6, any_depth=1, count=64),
    Limits(recursion=1, references=4, any_depth=1, count=32),
    Limits(recursion=1, references=3, any_depth=0, count=16),
    Limits(recursion=1, references=2, any_depth=0, count=8),
)
"""From the widest on: the first whose automaton is small enough is taken."""
