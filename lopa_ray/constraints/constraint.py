"""Constraint: an automaton over tokens. ConstraintState: the tokens that it allows at each position of a canvas.

Tokens are decided at any position, so every position has two sets of states: states that the tokens before it can lead
to (forward), and states from which the tokens after it can lead to an accepting state (backward). In both, a masked
position stands for any token. A token is allowed if it leads from the forward to the backward set: exactly then the
other masks can be filled so that the answer matches. (arXiv 2505.23061 finds the most likely such filling of a block;
here the decoder keeps its own order.)

An answer of T positions is accepted if it is a match, followed by EOS in all remaining positions.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.transition_table import TransitionTable

StateSet: TypeAlias = int  # A set of states, as the bits of an integer

START: StateSet = 1

# Results are cached, because most positions have the same sets of states in many steps.
TRANSITION_CACHE_SIZE, BITMASK_CACHE_SIZE = 20_000, 1_000
CACHED_BYTES = 2**26  # of sets of states, roughly, in a cache of a large automaton


class Constraint:
    """An automaton over tokens. It can be pickled, and all requests with the same pattern share it. Tokens with the
    same transition from every state form one class, which keeps the transition table small."""

    def __init__(
        self,
        token_classes: npt.NDArray[np.uint16],
        transitions: TransitionTable,
        accepting: npt.NDArray[np.bool_],
        eos_token_id: int,
    ) -> None:
        """State 0 is the start, and the last state follows EOS. `token_classes` uint16 [vocabulary]: the class of each
        token. Every class has a token. `accepting` bool [states]: whether a match may end in the state."""
        self.token_classes, self.transitions, self.accepting = token_classes, transitions, accepting
        self.eos_token_id = eos_token_id
        self.num_states = transitions.num_states
        self.after_eos: StateSet = 1 << (self.num_states - 1)
        self.accepting_states = self._pack(accepting)
        self._class_sizes = np.bincount(token_classes, minlength=transitions.num_classes)
        cache_size = min(TRANSITION_CACHE_SIZE, max(1_000, CACHED_BYTES // self.num_states))
        self.successors = lru_cache(cache_size)(self._successors)
        self.predecessors = lru_cache(cache_size)(self._predecessors)
        self.token_bitmask = lru_cache(BITMASK_CACHE_SIZE)(self._token_bitmask)
        self.allows_one_token = lru_cache(cache_size)(self._allows_one_token)

    def __reduce__(self) -> tuple[object, ...]:
        packed = zlib.compress(self.token_classes.tobytes(), 1)
        return _unpickle, (packed, self.transitions, self.accepting, self.eos_token_id)

    def _pack(self, member: Any) -> StateSet:
        return int.from_bytes(np.packbits(member, bitorder="little").tobytes(), "little")

    def _unpack(self, states: StateSet) -> npt.NDArray[np.bool_]:
        raw = np.frombuffer(states.to_bytes(-(-self.num_states // 8), "little"), np.uint8)
        return np.unpackbits(raw, count=self.num_states, bitorder="little").astype(np.bool_)

    def token_class(self, token: int) -> int:
        return int(self.token_classes[token])

    def _successors(self, states: StateSet, token_class: int | None) -> StateSet:
        sources, targets = self.transitions.of_class(token_class)
        return self._set_of(targets[self._unpack(states)[sources]])

    def _predecessors(self, states: StateSet, token_class: int | None) -> StateSet:
        sources, targets = self.transitions.of_class(token_class)
        return self._set_of(sources[self._unpack(states)[targets]])

    def _set_of(self, indices: npt.NDArray[np.uint16]) -> StateSet:
        member = np.zeros(self.num_states, np.bool_)
        member[indices] = True
        return self._pack(member)

    def _token_bitmask(self, before: StateSet, after: StateSet, or_eos: bool = False) -> bytes:
        """The tokens that lead from one set into the other, and EOS with `or_eos`, as a compressed bitmask."""
        allowed = self._classes_between(before, after)[self.token_classes]
        allowed[self.eos_token_id] |= or_eos
        return zlib.compress(np.packbits(allowed, bitorder="little").tobytes(), 1)

    def _allows_one_token(self, before: StateSet, after: StateSet, or_eos: bool = False) -> bool:
        """Whether exactly one token leads from one set into the other, or none does and EOS is allowed (`or_eos`)."""
        return bool(self._class_sizes[self._classes_between(before, after)].sum() + or_eos == 1)

    def _classes_between(self, before: StateSet, after: StateSet) -> npt.NDArray[np.bool_]:
        return self.transitions.classes_between(self._unpack(before), self._unpack(after))

    def min_tokens(self) -> int | None:
        """Number of tokens of the shortest match; None if no sequence of tokens matches."""
        states, seen, length = START, START, 0
        while states:
            if states & self.accepting_states & ~self.after_eos:
                return length
            states = self.successors(states, None) & ~seen
            seen |= states
            length += 1
        return None

    def is_complete_match(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` match and no further token can follow except EOS."""
        states = START
        for token in tokens:
            states = self.successors(states, self.token_class(token))
        return bool(states & self.accepting_states) and not self.successors(states, None) & ~self.after_eos


def _unpickle(
    token_classes: bytes, transitions: TransitionTable, accepting: npt.NDArray[np.bool_], eos_token_id: int
) -> Constraint:
    classes = np.frombuffer(zlib.decompress(token_classes), np.uint16)
    return Constraint(classes, transitions, accepting, eos_token_id)


class ConstraintState:
    """The tokens that a constraint allows on one canvas of an answer. Blocks that do not exist yet count as masks. An
    answer may have holes before given tokens. EOS in a hole ends it, in any state: in the hole's remaining positions
    EOS alone is allowed, and the given tokens after it go on from the state in which the hole has ended. So in a hole a
    set of states is two, both as bits of one integer: the states in it, and the states in which it has ended."""

    def __init__(
        self,
        constraint: Constraint,
        answer: Sequence[int],
        mask_token_id: int,
        span: range,
        min_tokens: int,
        holes: Sequence[range] = (),
    ) -> None:
        """`answer`: decided tokens and masks. `span`: all positions of the complete answer. The first `min_tokens` of
        them must not be EOS. `holes`: the positions of holes that given tokens follow, from the answer's start on."""
        length = len(span)
        self._constraint, self._start = constraint, span.start
        self._hole_stops = {at: hole.stop for hole in holes for at in hole}
        self._eos_class = constraint.token_class(constraint.eos_token_id)
        self._token_classes: list[int | None] = [
            None if token == mask_token_id else constraint.token_class(token) for token in answer
        ]
        self._token_classes += [None] * (length - len(answer))
        self._min_tokens = min_tokens
        self._forward: list[StateSet] = [START] + [0] * length
        self._backward: list[StateSet] = [0] * length + [
            self._without_early_eos(constraint.accepting_states, length)
        ]
        self._propagate(range(length), range(length - 1, -1, -1))

    def _without_early_eos(self, states: StateSet, at: int) -> StateSet:
        """`states` before position `at`, without the state after EOS if `at` is at most `min_tokens`."""
        return states & ~self._constraint.after_eos if at <= self._min_tokens else states

    def _split(self, states: StateSet) -> tuple[StateSet, StateSet]:
        """A set in a hole → the states in it, and the states in which it has ended."""
        shift = self._constraint.num_states
        return states & ((1 << shift) - 1), states >> shift

    def _may_be_eos(self, at: int) -> bool:
        return self._token_classes[at] in (None, self._eos_class)

    def _propagate(self, forward: range, backward: range) -> None:
        """Update the forward and backward sets in these orders of positions. Each stops at the first unchanged set."""
        for at in forward:
            states = self._states_after(at)
            if states == self._forward[at + 1]:
                break
            self._forward[at + 1] = states
        for at in backward:
            states = self._states_before(at)
            if states == self._backward[at]:
                break
            self._backward[at] = states

    def _states_after(self, at: int) -> StateSet:
        before, stop = self._forward[at], self._hole_stops.get(at)
        if stop is None:
            states = self._constraint.successors(before, self._token_classes[at])
            return self._without_early_eos(states, at + 1)
        before, ended_before = self._split(before)
        states = self._constraint.successors(before, self._token_classes[at]) & ~self._constraint.after_eos
        ended = before | ended_before if self._may_be_eos(at) and at >= self._min_tokens else 0
        return states | ended if at + 1 == stop else states | ended << self._constraint.num_states

    def _states_before(self, at: int) -> StateSet:
        if at not in self._hole_stops:
            states = self._constraint.predecessors(self._backward[at + 1], self._token_classes[at])
            return self._without_early_eos(states, at)
        after, ended_after = self._sets_after(at)
        states = self._constraint.predecessors(after, self._token_classes[at])
        ended = ended_after if self._may_be_eos(at) else 0
        if at - 1 not in self._hole_stops or at <= self._min_tokens:
            return states | ended
        return states | ended | ended << self._constraint.num_states

    def _sets_after(self, at: int) -> tuple[StateSet, StateSet]:
        """The backward sets after a position of a hole: in it, where there is no state after EOS, and where it has
        ended. After the hole's last position the answer goes on from either."""
        after = self._backward[at + 1]
        after, ended = (after, after) if at + 1 == self._hole_stops[at] else self._split(after)
        return after & ~self._constraint.after_eos, ended if at >= self._min_tokens else 0

    def _allowed(self, position: int) -> tuple[StateSet, StateSet, bool]:
        """The sets from which and into which a token leads, and whether EOS is allowed as the end of a hole."""
        at = position - self._start
        if at not in self._hole_stops:
            return self._forward[at], self._backward[at + 1], False
        before, ended = self._split(self._forward[at])
        after, ended_after = self._sets_after(at)
        return before, after, bool((before | ended) & ended_after)

    @property
    def satisfiable(self) -> bool:
        return bool(self._forward[0] & self._backward[0])

    def is_masked(self, position: int) -> bool:
        """Whether `position` is masked. A position of the prompt, which a block may have too, is not."""
        at = position - self._start
        return at >= 0 and self._token_classes[at] is None

    def token_bitmask(self, position: int) -> bytes:
        return self._constraint.token_bitmask(*self._allowed(position))

    def is_forced(self, position: int) -> bool:
        return self._constraint.allows_one_token(*self._allowed(position))

    def allows(self, position: int, token: int) -> bool:
        """Whether the answer can still be accepted with `token` at a position, in place of the token there."""
        before, after, ends_hole = self._allowed(position)
        if token == self._constraint.eos_token_id and position - self._start in self._hole_stops:
            return ends_hole
        return bool(self._constraint.successors(before, self._constraint.token_class(token)) & after)

    def allows_together(self, fills: Sequence[tuple[int, int]]) -> bool:
        """Whether the answer can still be accepted with all of `fills`, (position, token) each."""
        if len(fills) == 1:
            return self.allows(*fills[0])
        trial = copy.copy(self)
        trial._token_classes = self._token_classes.copy()
        trial._forward, trial._backward = self._forward.copy(), self._backward.copy()
        for fill in fills:
            if not trial.allows(*fill):
                return False
            trial.fill(*fill)
        return True

    def fill(self, position: int, token: int) -> None:
        at = position - self._start
        self._token_classes[at] = self._constraint.token_class(token)
        self._propagate(range(at, len(self._token_classes)), range(at, -1, -1))
