"""Constraint: which tokens may stand where, for decoders that fill positions in any order.

An autoregressive decoder follows an automaton from state to state. Here tokens are decided
anywhere, so for every position there are two sets: the states that the tokens before it can lead
to, and the states from which the tokens behind it can still end well. A masked position stands
for any token in both. A token may be decided where it leads from the one set into the other;
then, and only then, the masks can be filled so that the answer matches (arXiv 2505.23061 finds
the most likely such filling of a block; here the decoder's own order stays in charge).

An answer of T positions is good if it is a match and then EOS in all positions that are left.
No torch, no I/O.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

States: TypeAlias = int
"""A set of states, as the bits of a number."""

START: States = 1

KEPT_STEPS, KEPT_BITMASKS = 20_000, 1_000
"""How many results are kept: the same sets come back at most positions, step after step."""


class Constraint:
    """An automaton over tokens. Picklable, and the same for all requests with its pattern.

    Tokens that lead every state to the same state are one class, which makes the table small.
    """

    def __init__(
        self,
        classes: npt.NDArray[np.uint16],
        table: npt.NDArray[np.uint16],
        accepting: npt.NDArray[np.bool_],
        eos_token_id: int,
    ) -> None:
        """`classes` [vocabulary]: the class of each token. `table` [classes, states + 1]: the next state;
        the last is where nothing can match any more, and the one before it is that after EOS.
        `accepting` [states + 1]: where a match may end. State 0 is the start."""
        self.classes, self.table, self.accepting = classes, table, accepting
        self.eos_token_id = eos_token_id
        self.states = table.shape[1] - 1
        self.ended: States = 1 << (self.states - 1)
        self.good = self._set(accepting[: self.states])
        self._sizes = np.bincount(classes, minlength=len(table))
        reach = np.zeros((self.states, self.states + 1), np.bool_)
        for row in table[np.unique(classes)]:
            reach[np.arange(self.states), row[: self.states]] = True
        # Where any token leads from each state, and from where to each: bits, as in `States`.
        self._next = np.packbits(reach[:, : self.states], axis=1, bitorder="little")
        self._previous = np.packbits(reach[:, : self.states].T, axis=1, bitorder="little")
        self.after = lru_cache(KEPT_STEPS)(self._after)
        self.before = lru_cache(KEPT_STEPS)(self._before)
        self.token_bitmask = lru_cache(KEPT_BITMASKS)(self._token_bitmask)
        self.single = lru_cache(KEPT_STEPS)(self._single)

    def __reduce__(self) -> tuple[object, ...]:
        return _unpacked, (
            zlib.compress(self.classes.tobytes(), 1),
            zlib.compress(self.table.tobytes(), 1),
            self.accepting,
            self.eos_token_id,
        )

    def _set(self, member: Any) -> States:
        """From bool [states]."""
        return int.from_bytes(np.packbits(member, bitorder="little").tobytes(), "little")

    def _members(self, states: States) -> npt.NDArray[np.bool_]:
        raw = np.frombuffer(states.to_bytes(-(-self.states // 8), "little"), np.uint8)
        return np.unpackbits(raw, count=self.states, bitorder="little").astype(np.bool_)

    def kind(self, token: int) -> int:
        """The class of a token."""
        return int(self.classes[token])

    def _after(self, states: States, kind: int | None) -> States:
        """Where a token of a class, or any token (None), leads from `states`."""
        member = self._members(states)
        if kind is None:
            return _union(self._next[member])
        target = np.zeros(self.states + 1, np.bool_)
        target[self.table[kind, : self.states][member]] = True
        return self._set(target[: self.states])

    def _before(self, states: States, kind: int | None) -> States:
        """From where a token of a class, or any token (None), leads into `states`."""
        member = self._members(states)
        if kind is None:
            return _union(self._previous[member])
        return self._set(np.append(member, False)[self.table[kind, : self.states]])

    def _token_bitmask(self, before: States, after: States) -> bytes:
        """The tokens that lead from one set into the other; see `unpack_bitmask`."""
        allowed = self._kinds(before, after)[self.classes]
        return zlib.compress(np.packbits(allowed, bitorder="little").tobytes(), 1)

    def _single(self, before: States, after: States) -> bool:
        """Whether exactly one token leads from one set into the other."""
        return bool(self._sizes[self._kinds(before, after)].sum() == 1)

    def _kinds(self, before: States, after: States) -> Any:
        """Classes of tokens that lead from one set into the other: bool [classes]."""
        wanted = np.append(self._members(after), False)
        return wanted[self.table[:, : self.states][:, self._members(before)]].any(axis=1)

    def shortest(self) -> int | None:
        """Tokens that the shortest match has; None if no tokens make up any match."""
        states, seen, length = START, START, 0
        while states:
            if states & self.good & ~self.ended:
                return length
            states = self.after(states, None) & ~seen
            seen |= states
            length += 1
        return None

    def complete(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` match and could not go on."""
        states = START
        for token in tokens:
            states = self.after(states, self.kind(token))
        return bool(states & self.good) and not self.after(states, None) & ~self.ended


def _union(sets: npt.NDArray[np.uint8]) -> States:
    """Of sets as bits [sets, bytes]."""
    return int.from_bytes(np.bitwise_or.reduce(sets, axis=0).tobytes(), "little")


def _unpacked(
    classes: bytes, table: bytes, accepting: npt.NDArray[np.bool_], eos_token_id: int
) -> Constraint:
    shaped = np.frombuffer(zlib.decompress(table), np.uint16).reshape(-1, len(accepting))
    return Constraint(np.frombuffer(zlib.decompress(classes), np.uint16), shaped, accepting, eos_token_id)


@lru_cache(256)
def unpack_bitmask(bitmask: bytes, vocabulary_size: int) -> npt.NDArray[np.bool_]:
    """Allowed tokens, as they travel in a plan → bool [vocabulary]."""
    bits = np.frombuffer(zlib.decompress(bitmask), np.uint8)
    return np.unpackbits(bits, count=vocabulary_size, bitorder="little").astype(np.bool_)


class ConstraintState:
    """A constraint laid over one canvas of an answer. Blocks that do not exist yet count as masks."""

    def __init__(
        self, constraint: Constraint, answer: Sequence[int], mask_token_id: int, span: range, min_tokens: int
    ) -> None:
        """`answer`: decided tokens and masks; `span`: all positions that it will have in the end, of
        which the first `min_tokens` are not EOS."""
        length = len(span)
        self._constraint, self._start = constraint, span.start
        self._kinds: list[int | None] = [
            None if token == mask_token_id else constraint.kind(token) for token in answer
        ]
        self._kinds += [None] * (length - len(answer))
        self._min_tokens = min_tokens
        self._before: list[States] = [START] + [0] * length
        self._behind: list[States] = [0] * length + [self._open(constraint.good, length)]
        self._spread(range(length), range(length - 1, -1, -1))

    def _open(self, states: States, at: int) -> States:
        """No EOS has come by then."""
        return states & ~self._constraint.ended if at <= self._min_tokens else states

    def _spread(self, forward: range, backward: range) -> None:
        """Bring the sets up to date behind and before a position, as far as they change."""
        constraint, kinds = self._constraint, self._kinds
        for at in forward:
            states = self._open(constraint.after(self._before[at], kinds[at]), at + 1)
            if states == self._before[at + 1]:
                break
            self._before[at + 1] = states
        for at in backward:
            states = self._open(constraint.before(self._behind[at + 1], kinds[at]), at)
            if states == self._behind[at]:
                break
            self._behind[at] = states

    @property
    def possible(self) -> bool:
        """Whether the masks can be filled so that the answer is good."""
        return bool(self._before[0] & self._behind[0])

    def masked(self, position: int) -> bool:
        """Whether a position is open."""
        return self._kinds[position - self._start] is None

    def token_bitmask(self, position: int) -> bytes:
        """The tokens that a position may hold; see `unpack_bitmask`."""
        at = position - self._start
        return self._constraint.token_bitmask(self._before[at], self._behind[at + 1])

    def forced(self, position: int) -> bool:
        """Whether a position may hold one token alone."""
        at = position - self._start
        return self._constraint.single(self._before[at], self._behind[at + 1])

    def fits(self, position: int, token: int) -> bool:
        """Whether the answer can still become good with `token` at a masked position."""
        at, kind = position - self._start, self._constraint.kind(token)
        return bool(self._constraint.after(self._before[at], kind) & self._behind[at + 1])

    def put(self, position: int, token: int) -> None:
        """Decide a masked position."""
        at = position - self._start
        self._kinds[at] = self._constraint.kind(token)
        self._spread(range(at, len(self._kinds)), range(at, -1, -1))


class TokenBitmasks:
    """The token bitmasks of a plan, each once: most positions share theirs."""

    def __init__(self) -> None:
        self._index: dict[bytes, int] = {}

    def add(self, fit: ConstraintState | None, span: range) -> tuple[int, ...]:
        """Which bitmasks say what the positions of `span` may get; see `Branch.bitmask_ids`."""
        if fit is None:
            return ()
        return tuple(
            self._index.setdefault(fit.token_bitmask(p), len(self._index)) if fit.masked(p) else -1
            for p in span
        )

    @property
    def unique(self) -> tuple[bytes, ...]:
        """See `Plan.token_bitmasks`."""
        return tuple(self._index)
