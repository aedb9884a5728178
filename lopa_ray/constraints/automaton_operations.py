"""Intersections, differences and smaller forms of automata, and questions about them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.automaton_builder import MAX_STATES, TooManyStatesError
from lopa_ray.constraints.byte_automaton import ByteAutomaton


def intersection(first: ByteAutomaton, second: ByteAutomaton) -> ByteAutomaton:
    """The texts that both accept. Raises TooManyStatesError."""
    return _product(first, second, second.accepting, second_may_die=False)


def difference(first: ByteAutomaton, second: ByteAutomaton) -> ByteAutomaton:
    """The texts that `first` accepts and `second` does not. Raises TooManyStatesError."""
    return _product(first, second, ~second.accepting, second_may_die=True)


def accepts(automaton: ByteAutomaton, text: bytes) -> bool:
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
    """The automaton without states from which no match is possible."""
    columns, _ = byte_classes(automaton.transitions)
    alive, known = automaton.accepting, None
    while known is None or (alive != known).any():
        alive, known = alive | alive[columns].any(axis=1), alive
    return _merged(automaton, np.where(alive, np.arange(len(alive)), len(alive) - 1))


def minimized(automaton: ByteAutomaton) -> ByteAutomaton:
    """The automaton of the same texts that has the fewest states (Moore's algorithm, by hashes of rows)."""
    columns, _ = byte_classes(automaton.transitions)
    weights = np.random.default_rng(0).integers(1, 2**63, columns.shape[1], np.uint64) | np.uint64(1)
    labels, count = automaton.accepting.astype(np.int64), 0
    while True:
        marks = np.random.default_rng(1).integers(1, 2**63, int(labels.max()) + 1, np.uint64)[labels]
        hashes = (marks[columns] * weights).sum(axis=1) ^ marks
        labels = np.unique(hashes, return_inverse=True)[1].reshape(-1)
        if labels.max() + 1 == count:
            break
        count = int(labels.max()) + 1
    firsts = np.unique(labels, return_index=True)[1]
    equal = labels[columns] == labels[columns[firsts]][labels]
    assert equal.all()  # no two rows had the same hash by chance
    return _merged(automaton, labels)


def byte_classes(transitions: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """The different columns of a table int32 [states, 256], and which of them each byte has, int64 [256]."""
    weights = np.random.default_rng(0).integers(1, 2**63, (len(transitions), 1), np.uint64)
    _, firsts, classes = np.unique(
        (transitions.astype(np.uint64) * weights).sum(axis=0), return_index=True, return_inverse=True
    )
    columns, classes = transitions[:, firsts], classes.reshape(-1)
    assert (columns[:, classes] == transitions).all()  # no two columns had the same hash by chance
    return columns, classes


def _merged(automaton: ByteAutomaton, labels: npt.NDArray[np.int64]) -> ByteAutomaton:
    """One state per label, in the order of each label's first state; states that reach no match are dead."""
    dead_label = labels[-1]
    _, firsts = np.unique(labels, return_index=True)
    kept = np.sort(firsts[labels[firsts] != dead_label])
    new_index = np.full(int(labels.max()) + 1, len(kept), np.int32)
    new_index[labels[kept]] = np.arange(len(kept))
    rows = np.append(kept, len(labels) - 1)
    return ByteAutomaton(new_index[labels[automaton.transitions[rows]]], automaton.accepting[rows])
