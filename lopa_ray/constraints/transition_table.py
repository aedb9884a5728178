"""TransitionTable: where the classes of tokens lead from each state, without classes that lead nowhere, as most do: a
token that is a part of one function's name leads from there alone."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Function = tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]
"""The states from which a class of tokens leads somewhere, in order, and where it leads: uint16 [states] each."""


class TransitionTable:
    """All arrays are read-only. It can be pickled."""

    def __init__(
        self,
        num_states: int,
        class_starts: npt.NDArray[np.int64],
        sources: npt.NDArray[np.uint16],
        targets: npt.NDArray[np.uint16],
    ) -> None:
        """Class c leads from `sources` to `targets` [transitions] in the span from class_starts[c] to
        class_starts[c + 1]."""
        self.num_states, self.num_classes = num_states, len(class_starts) - 1
        self._class_starts, self._sources, self._targets = class_starts, sources, targets
        order = np.argsort(sources, kind="stable")
        classes = np.repeat(np.arange(self.num_classes), np.diff(class_starts))
        self._classes_by_source = classes[order].astype(np.uint16)
        self._targets_by_source = targets[order]
        self._source_starts = np.searchsorted(sources[order], np.arange(num_states + 1))
        # The transitions of any class: pairs of states.
        pairs = np.unique(sources.astype(np.int64) * num_states + targets)
        first, second = np.divmod(pairs, num_states)
        self._any: Function = (first.astype(np.uint16), second.astype(np.uint16))

    @classmethod
    def of_functions(cls, num_states: int, functions: Sequence[Function]) -> TransitionTable:
        starts, none = np.cumsum([0, *(len(sources) for sources, _ in functions)]), np.zeros(0, np.uint16)
        sources = np.concatenate([none, *(sources for sources, _ in functions)])
        return cls(
            num_states, starts, sources, np.concatenate([none, *(targets for _, targets in functions)])
        )

    @classmethod
    def of_dense(cls, transitions: npt.NDArray[np.uint16]) -> TransitionTable:
        """`transitions` uint16 [classes, states + 1]: the next state. The last state is the dead state."""
        num_states = transitions.shape[1] - 1
        classes, sources = np.nonzero(transitions[:, :num_states] != num_states)
        starts = np.searchsorted(classes, np.arange(len(transitions) + 1))
        targets = transitions[classes, sources].astype(np.uint16)
        return cls(num_states, starts, sources.astype(np.uint16), targets)

    def dense(self) -> npt.NDArray[np.uint16]:
        """The inverse of `of_dense`: uint16 [classes, states + 1]."""
        transitions = np.full((self.num_classes, self.num_states + 1), self.num_states, np.uint16)
        classes = np.repeat(np.arange(self.num_classes), np.diff(self._class_starts))
        transitions[classes, self._sources] = self._targets
        return transitions

    def __reduce__(self) -> tuple[object, ...]:
        packed = (
            zlib.compress(part.tobytes(), 1) for part in (self._class_starts, self._sources, self._targets)
        )
        return _unpickle, (self.num_states, *packed)

    def __len__(self) -> int:
        return len(self._sources)

    def of_class(self, token_class: int | None) -> Function:
        """uint16 [states] each: where a class leads, or any class (None)."""
        if token_class is None:
            return self._any
        span = slice(self._class_starts[token_class], self._class_starts[token_class + 1])
        return self._sources[span], self._targets[span]

    def classes_between(
        self, before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        """Whether each class leads from one set of states, bool [states], into another; bool [classes]."""
        states = np.flatnonzero(before)
        starts, lengths = self._source_starts[states], np.diff(self._source_starts)[states]
        offsets = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        at = offsets + np.arange(len(offsets))
        found = np.zeros(self.num_classes, np.bool_)
        found[self._classes_by_source[at[after[self._targets_by_source[at]]]]] = True
        return found


def _unpickle(num_states: int, *packed: bytes) -> TransitionTable:
    starts, sources, targets = (
        np.frombuffer(zlib.decompress(part), kind)
        for part, kind in zip(packed, (np.int64, np.uint16, np.uint16), strict=True)
    )
    return TransitionTable(num_states, starts, sources, targets)
