"""Builds the automaton of an expression: by Thompson's construction, then subsets."""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.byte_automaton import ByteAutomaton
from lopa_ray.constraints.expression import Choice, Embedded, Expression, Literal, Repeat, Sequence

MAX_STATES = 60_000  # their indices are uint16

Edges: TypeAlias = tuple[tuple[int, int, int], ...]  # (first byte, last byte, next node), each


class TooManyStatesError(Exception):
    """An expression needs more states than are allowed."""


def build_automaton(expression: Expression, max_states: int = MAX_STATES) -> ByteAutomaton:
    """The automaton of an expression. A match is possible from each of its states. The smallest one would take most of
    the time to find. Raises TooManyStatesError for more than `max_states`, or twice as many nodes of the graph from
    which it is made."""
    graph = _Graph(2 * max_states)
    start = graph.before(expression, _Graph.END)
    return _subsets(graph, start, max_states)


class _Graph:
    """Nodes that have edges with bytes, or lead on without a byte."""

    END = 0

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self.edges: list[Edges] = [()]
        self.free: list[list[int]] = [[]]
        self._known: dict[tuple[Expression, int], int] = {}
        self._rows: dict[int, list[list[tuple[int, int, int]]]] = {}

    def _node(self, edges: Edges = (), free: Items[int] = ()) -> int:
        if len(self.edges) >= self._max_nodes:
            raise TooManyStatesError
        self.edges.append(edges)
        self.free.append(list(free))
        return len(self.edges) - 1

    def before(self, expression: Expression, after: int) -> int:
        key = (expression, after)
        if key not in self._known:
            self._known[key] = self._before(expression, after)
        return self._known[key]

    def _before(self, expression: Expression, after: int) -> int:
        match expression:
            case Literal(text):
                for byte in reversed(text):
                    after = self._node(((byte, byte, after),))
                return after
            case Sequence(parts):
                for part in reversed(parts):
                    after = self.before(part, after)
                return after
            case Choice(parts):
                return self._node(free=[self.before(part, after) for part in parts])
            case Repeat(part, minimum, maximum):
                return self._repeated(part, minimum, maximum, after)
            case Embedded(automaton):
                return self._embedded(automaton, after)
        raise TypeError(f"unknown expression {expression!r}")

    def _repeated(self, part: Expression, minimum: int, maximum: int | None, after: int) -> int:
        node = after if maximum is not None else self._node()
        if maximum is None:
            self.free[node] += [self.before(part, node), after]
        for _ in range(0 if maximum is None else maximum - minimum):
            node = self._node(free=[self.before(part, node), after])
        for _ in range(minimum):
            node = self.before(part, node)
        return node

    def _embedded(self, automaton: ByteAutomaton, after: int) -> int:
        dead = len(automaton.transitions) - 1
        base = len(self.edges)
        if dead > self._max_nodes:
            raise TooManyStatesError
        rows = self._rows.get(id(automaton))
        if rows is None:
            rows = self._rows[id(automaton)] = [_ranges(row) for row in automaton.transitions[:dead]]
        for state, row in enumerate(rows):
            edges = tuple((first, last, base + target) for first, last, target in row if target != dead)
            self._node(edges, [after] if automaton.accepting[state] else [])
        return base if dead else self._node()


def _ranges(row: npt.NDArray[np.int32]) -> list[tuple[int, int, int]]:
    """The ranges of bytes in which all lead to the same state."""
    starts = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist()]
    return [
        (first, stop - 1, int(row[first])) for first, stop in zip(starts, [*starts[1:], 256], strict=True)
    ]


def _subsets(graph: _Graph, start: int, max_states: int) -> ByteAutomaton:
    closures: dict[int, frozenset[int]] = {}

    def closure(node: int) -> frozenset[int]:
        if node not in closures:
            reached, waiting = {node}, [node]
            while waiting:
                for target in graph.free[waiting.pop()]:
                    if target not in reached:
                        reached.add(target)
                        waiting.append(target)
            closures[node] = frozenset(n for n in reached if graph.edges[n] or n == _Graph.END)
        return closures[node]

    order = [closure(start)]
    index_of = {order[0]: 0}
    rows: list[list[tuple[int, int, int]]] = []
    for nodes in order:  # the list grows as new states are found
        row = []
        for first, last, targets in _split([edge for node in nodes for edge in graph.edges[node]]):
            state = closure(targets[0]) if len(targets) == 1 else frozenset().union(*map(closure, targets))
            if state not in index_of:
                index_of[state] = len(order)
                order.append(state)
                if len(order) > max_states:
                    raise TooManyStatesError
            row.append((first, last, index_of[state]))
        rows.append(row)
    dead = len(order)
    transitions = np.full((dead + 1, 256), dead, np.int32)
    for index, row in enumerate(rows):
        for first, last, target in row:
            transitions[index, first : last + 1] = target
    accepting = np.array([_Graph.END in nodes for nodes in order] + [False])
    return ByteAutomaton(transitions, accepting)


def _split(edges: list[tuple[int, int, int]]) -> list[tuple[int, int, list[int]]]:
    """Edges whose ranges may overlap → ranges that do not, with the nodes to which each leads."""
    if len(edges) == 1:
        first, last, target = edges[0]
        return [(first, last, [target])]
    bounds = sorted({bound for first, last, _ in edges for bound in (first, last + 1)})
    parts = []
    for first, stop in pairwise(bounds):
        targets = [target for low, high, target in edges if low <= first <= high]
        if targets:
            parts.append((first, stop - 1, targets))
    return parts
