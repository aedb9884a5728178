"""HolesConstraintState: a constraint over an answer with given tokens, and holes in front of them.

EOS in such a hole ends the hole, in any state: in the hole's remaining positions EOS alone is allowed, and the given
tokens behind them go on from the state that the hole has ended in. So in a hole a set of states is two: of the states
in it, and of those that it has ended in. Both are bits of one integer.
"""

from __future__ import annotations

from collections.abc import Sequence

from lopa_ray.constraints.constraint import Constraint, ConstraintState, StateSet


class HolesConstraintState(ConstraintState):
    """The tokens that a constraint allows on one canvas of an answer with holes. The last hole of an answer, which no
    given token follows, is none of them: it ends as the answer does."""

    def __init__(
        self,
        constraint: Constraint,
        answer: Sequence[int],
        mask_token_id: int,
        span: range,
        min_tokens: int,
        holes: Sequence[range],
    ) -> None:
        """`holes`: their positions, counted from the beginning of the answer. For the others see `ConstraintState`."""
        self._hole_stops = {at: hole.stop for hole in holes for at in hole}
        """Position of a hole → the end of the hole."""
        self._eos_class = constraint.token_class(constraint.eos_token_id)
        super().__init__(constraint, answer, mask_token_id, span, min_tokens)

    def _split(self, states: StateSet) -> tuple[StateSet, StateSet]:
        """A set in a hole → the states in it, and those that it has ended in."""
        shift = self._constraint.num_states
        return states & ((1 << shift) - 1), states >> shift

    def _joined(self, states: StateSet, ended: StateSet) -> StateSet:
        return states | ended << self._constraint.num_states

    def _may_be_eos(self, at: int) -> bool:
        return self._token_classes[at] in (None, self._eos_class)

    def _states_after(self, at: int) -> StateSet:
        stop = self._hole_stops.get(at)
        if stop is None:
            return super()._states_after(at)
        before, ended_before = self._split(self._forward[at])
        states = self._in_hole(self._constraint.successors(before, self._token_classes[at]))
        ended = before | ended_before if self._may_be_eos(at) and at >= self._min_tokens else 0
        return states | ended if at + 1 == stop else self._joined(states, ended)

    def _states_before(self, at: int) -> StateSet:
        stop = self._hole_stops.get(at)
        if stop is None:
            return super()._states_before(at)
        after, ended_after = self._sets_behind(at)
        states = self._constraint.predecessors(self._in_hole(after), self._token_classes[at])
        ended = ended_after if self._may_be_eos(at) else 0
        begins = at - 1 not in self._hole_stops
        return self._joined(states | ended, 0 if begins or at <= self._min_tokens else ended)

    def _sets_behind(self, at: int) -> tuple[StateSet, StateSet]:
        """The backward sets behind a position of a hole. Behind the hole's last one it goes on from either."""
        after = self._backward[at + 1]
        after, ended = (after, after) if at + 1 == self._hole_stops[at] else self._split(after)
        return after, ended if at >= self._min_tokens else 0

    def _in_hole(self, states: StateSet) -> StateSet:
        """`states` without the one after EOS, which a hole has not."""
        return states & ~self._constraint.after_eos

    def _allowed(self, position: int) -> tuple[StateSet, StateSet, bool]:
        """The sets that a token other than EOS leads from and into, and whether EOS is allowed, in a hole."""
        at = position - self._start
        before, ended = self._split(self._forward[at])
        after, ended_after = self._sets_behind(at)
        return before, self._in_hole(after), bool((before | ended) & ended_after)

    def token_bitmask(self, position: int) -> bytes:
        if position - self._start not in self._hole_stops:
            return super().token_bitmask(position)
        return self._constraint.token_bitmask(*self._allowed(position))

    def is_forced(self, position: int) -> bool:
        if position - self._start not in self._hole_stops:
            return super().is_forced(position)
        return self._constraint.allows_one_token(*self._allowed(position))

    def allows(self, position: int, token: int) -> bool:
        if position - self._start not in self._hole_stops:
            return super().allows(position, token)
        before, after, or_eos = self._allowed(position)
        if token == self._constraint.eos_token_id:
            return or_eos
        return bool(self._constraint.successors(before, self._constraint.token_class(token)) & after)
