"""Intersections and differences of automata, and questions about them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.automaton_builder import MAX_STATES, TooManyStatesError, byte_classes
from lopa_ray.constraints.byte_automaton import ByteAutomaton


def intersection(first: ByteAutomaton, second: ByteAutomaton) -> ByteAutomaton:
    """The automaton of the texts that both accept. Raises TooManyStatesError."""
    return _product(first, second, second.accepting, second_may_die=False)


def difference(first: ByteAutomaton, second: ByteAutomaton) -> ByteAutomaton:
    """The automaton of the texts that `first` accepts and `second` does not. Raises TooManyStatesError."""
    return _product(first, second, ~second.accepting, second_may_die=True)


def is_empty(automaton: ByteAutomaton) -> bool:
    """Whether an automaton accepts nothing. A match is possible from each of its states."""
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
    width, dead = len(second.transitions), len(first.transitions) - 1
    columns, classes = byte_classes(np.concatenate([first.transitions, second.transitions]))
    left, right = columns[: dead + 1].astype(np.int64) * width, columns[dead + 1 :]

    def successors(pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The next pairs, int64 [pairs, classes of bytes]; -1 where no match is possible any more."""
        targets = left[pairs // width] + right[pairs % width]
        gone = targets >= dead * width
        if not second_may_die:
            gone |= targets % width == width - 1
        return np.where(gone, -1, targets)

    index_of = {0: 0}
    frontier, rows = np.zeros(1, np.int64), []
    while len(frontier):
        targets = successors(frontier)
        rows.append(targets)
        new = [pair for pair in np.unique(targets).tolist() if pair >= 0 and pair not in index_of]
        index_of.update(zip(new, range(len(index_of), len(index_of) + len(new)), strict=True))
        if len(index_of) > MAX_STATES:
            raise TooManyStatesError
        frontier = np.array(new, np.int64)
    found = np.array(list(index_of), np.int64)
    order = np.argsort(found)
    targets = np.concatenate(rows)
    at = np.minimum(np.searchsorted(found[order], targets), len(found) - 1)
    index = np.where(targets >= 0, order[at], len(found)).astype(np.int32)[:, classes]
    transitions = np.append(index, np.full((1, 256), len(found), np.int32), axis=0)
    ends = first.accepting[found // width] & accepting[found % width]
    return _trimmed(ByteAutomaton(transitions, np.append(ends, False)))


def _trimmed(automaton: ByteAutomaton) -> ByteAutomaton:
    """The same automaton without the states from which no match is possible."""
    columns, _ = byte_classes(automaton.transitions)
    alive, known = automaton.accepting, None
    while known is None or (alive != known).any():
        alive, known = alive | alive[columns].any(axis=1), alive
    kept = np.flatnonzero(alive)
    index = np.full(len(alive), len(kept), np.int32)
    index[kept] = np.arange(len(kept))
    rows = np.append(kept, len(alive) - 1)
    return ByteAutomaton(index[automaton.transitions[rows]], automaton.accepting[rows])
