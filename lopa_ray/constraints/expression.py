"""Expressions: sets of byte strings, from which `build_automaton` makes automata.

They form a graph: an expression may be a part of several others, and is then built once for each of its continuations.
None stands for the empty set, of which no part of an answer can be a member.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from lopa_ray.constraints.byte_automaton import ByteAutomaton


@dataclass(frozen=True, eq=False, slots=True)
class Expression:
    """Compared by identity, since a graph remembers what it has built of each."""


@dataclass(frozen=True, eq=False, slots=True)
class Literal(Expression):
    text: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Sequence(Expression):
    parts: tuple[Expression, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Choice(Expression):
    parts: tuple[Expression, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Repeat(Expression):
    part: Expression
    minimum: int
    maximum: int | None  # none: unbounded


@dataclass(frozen=True, eq=False, slots=True)
class Embedded(Expression):
    automaton: ByteAutomaton


Language: TypeAlias = Expression | None  # an expression, or None for the empty set

EMPTY = Sequence(())


def literal(text: str) -> Literal:
    return Literal(text.encode())


def sequence(*parts: Language) -> Language:
    """The parts in a row; None if one of them is."""
    known = tuple(part for part in parts if part is not None)
    return Sequence(known) if len(known) == len(parts) else None


def choice(parts: Iterable[Language]) -> Language:
    """Any of the parts; None if all of them are."""
    known = tuple(dict.fromkeys(part for part in parts if part is not None))
    return known[0] if len(known) == 1 else Choice(known) if known else None


def optional(part: Expression) -> Expression:
    return Choice((part, EMPTY))
