"""Intersections and differences of automata, and questions about them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.automaton_builder import MAX_NODES, TooManyStatesError, minimized
from lopa_ray.constraints.byte_automaton import ByteAutomaton


def intersection(first: ByteAutomaton, second: ByteAutomaton) -> ByteAutomaton:
    """The automaton of the texts that both accept. Raises TooManyStatesError."""
    return _product(first, second, second.accepting, second_may_die=False)


def difference(first: ByteAutomaton, second: ByteAutomaton) -> ByteAutomaton:
    """The automaton of the texts that `first` accepts and `second` does not. Raises TooManyStatesError."""
    return _product(first, second, ~second.accepting, second_may_die=True)


def is_empty(automaton: ByteAutomaton) -> bool:
    """Whether an automaton with the fewest states accepts nothing."""
    return not automaton.accepting.any()


def accepts(automaton: ByteAutomaton, text: bytes) -> bool:
    """Whether an automaton accepts a text."""
    state = 0
    for byte in text:
        state = int(automaton.transitions[state, byte])
    return bool(automaton.accepting[state])


def _product(
    first: ByteAutomaton, second: ByteAutomaton, accepting: npt.NDArray[np.bool_], *, second_may_die: bool
) -> ByteAutomaton:
    """The automaton whose states are pairs. `accepting` [states of `second`]: where `second` lets a text end."""
    width = len(second.transitions)
    alive = np.ones(len(first.transitions) * width, np.bool_)
    alive[(len(first.transitions) - 1) * width :] = False
    if not second_may_die:
        alive[width - 1 :: width] = False
    pairs = np.zeros(1, np.int64)
    found, frontier = pairs, pairs[alive[pairs]]
    while len(frontier):
        targets = _successors(first, second, frontier)
        frontier = np.setdiff1d(targets[alive[targets]], found)
        found = np.concatenate([found, frontier])
        if len(found) > MAX_NODES:
            raise TooManyStatesError
    order = np.argsort(found)
    targets = _successors(first, second, found)
    at = np.minimum(np.searchsorted(found[order], targets), len(found) - 1)
    index = np.where(alive[targets], order[at], len(found)).astype(np.int32)
    transitions = np.append(index, np.full((1, 256), len(found), np.int32), axis=0)
    ends = first.accepting[found // width] & accepting[found % width]
    return minimized(ByteAutomaton(transitions, np.append(ends, False)))


def _successors(
    first: ByteAutomaton, second: ByteAutomaton, pairs: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """The next pairs, int64 [pairs, 256]."""
    width = len(second.transitions)
    return (
        first.transitions[pairs // width].astype(np.int64) * width + second.transitions[pairs % width]
    )
