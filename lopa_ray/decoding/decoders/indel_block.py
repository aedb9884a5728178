"""IndelBlock: a block whose tokens are filled, edited, deleted and inserted. Each call is one `step`.

A token is written like any other, and DELETE and SPLIT as well: DELETE then drops its position, SPLIT puts a mask
before what stood there. What is too long for the block is lost at its end, what is too short is filled up with masks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, Self

from lopa_ray.protocol.outcome import Move
from lopa_ray.protocol.plan import Fill


class Likely(NamedTuple):
    """A token, and how likely it is at a position."""

    token: int
    probability: float
    logprob: float  # in nats


Ids = Mapping[int, int]  # position → token, ascending: what may be written, without prompt and given tokens
Candidates = Mapping[int, Sequence[Likely]]  # position → its most likely tokens, most likely first


class IndelRule(NamedTuple):
    """The constants of all blocks of a request."""

    mask: int
    delete: int | None
    split: int | None
    confidence_threshold: float
    editing_threshold: float
    max_post_steps: int
    max_calls: int  # calls on a block before the final one, at most

    @property
    def special(self) -> tuple[int | None, ...]:
        return self.mask, self.delete, self.split


class IndelStep(NamedTuple):
    """The effect of a call on a block: its content moves, then tokens are written where they are to stand."""

    block: IndelBlock
    moves: tuple[Move, ...] = ()
    written: Mapping[int, tuple[int, Likely]] = {}
    """Position → the position that was scored for it, and its token."""


class IndelBlock(NamedTuple):
    """A block between two calls."""

    original: frozenset[int]  # positions of what was masked when the block began, wherever it has moved
    calls: int = 0
    post_steps: int = 0  # calls that began without an original mask
    inputs: frozenset[tuple[int, ...]] = frozenset()  # the tokens that calls have seen
    written: Mapping[int, frozenset[int]] = {}  # position → all tokens that were ever written there
    is_final: bool = False  # whether no call follows

    def after_fills(self, fills: Iterable[Fill]) -> Self:
        """The block with tokens that no call of its own has written."""
        written = dict(self.written)
        for position, token in fills:
            written[position] = written.get(position, frozenset()) | {token}
        return self._replace(written=written)

    def num_candidates(self, ids: Ids, rule: IndelRule) -> int:
        """How many of each position's most likely tokens `step` has to know."""
        most = 2
        if rule.max_post_steps == 0 or self._next_is_final(self._original_masks(ids, rule), rule):
            most = 1 + len(rule.special)
        if tuple(ids.values()) in self.inputs:
            most = max(most, 2 + max(map(len, self.written.values())))
        return most

    def step(self, ids: Ids, candidates: Candidates, rule: IndelRule) -> IndelStep:
        """A call on these tokens."""
        original = self._original_masks(ids, rule)
        final = self._next_is_final(original, rule)
        block = self._replace(calls=self.calls + 1, post_steps=self.post_steps + (not original))
        likely = {p: _best(candidates[p], (rule.mask,) if p in original and not final else ()) for p in ids}
        masked = [p for p, token in ids.items() if token == rule.mask]
        filled = masked if final or not original else _chosen(masked, len(original), likely, rule)
        if rule.max_post_steps == 0 and original <= {*filled}:
            final, filled = True, masked
        writes = {
            p: likely[p]
            for p, token in ids.items()
            if p in filled
            or (token not in (rule.mask, likely[p].token) and likely[p].probability > rule.editing_threshold)
        }
        if not writes:
            return IndelStep(block._replace(is_final=True))
        tokens = tuple(ids.values())
        if final:
            writes = {
                p: _best(candidates[p], rule.special) if of.token in rule.special else of
                for p, of in writes.items()
            }
        elif tokens in self.inputs:
            writes |= self._escape(ids, writes, candidates, original, rule)
        block = block.after_fills((p, of.token) for p, of in writes.items())
        block = block._replace(inputs=self.inputs | {tokens}, is_final=final)
        return block._moved(ids, writes, rule)

    def _original_masks(self, ids: Ids, rule: IndelRule) -> frozenset[int]:
        return frozenset(p for p in self.original if ids.get(p) == rule.mask)

    def _next_is_final(self, original: Collection[int], rule: IndelRule) -> bool:
        """Whether the next call is the last one. It fills all masks, and none with a special token."""
        if self.calls >= rule.max_calls:
            return True
        return not original and self.post_steps + 1 >= rule.max_post_steps

    def _escape(
        self,
        ids: Ids,
        writes: Mapping[int, Likely],
        candidates: Candidates,
        original: Collection[int],
        rule: IndelRule,
    ) -> dict[int, Likely]:
        """A call that has seen the same tokens before would repeat what followed. The least probable change takes a
        token that was never written there."""
        changes = [p for p, likely in writes.items() if likely.token != ids[p]]
        if not changes:
            return {}
        at = min(changes, key=lambda p: writes[p].probability)
        banned = {*self.written.get(at, ()), *((rule.mask,) if at in original else ())}
        return {at: _best(candidates[at], banned)}

    def _moved(self, ids: Ids, writes: Mapping[int, Likely], rule: IndelRule) -> IndelStep:
        """Carry out DELETE and SPLIT. The part between two given tokens is a block of its own."""
        ops = {p: likely.token for p, likely in writes.items() if likely.token in (rule.delete, rule.split)}
        sources: dict[int, int | None] = {}
        for _, part in groupby(enumerate(ids), lambda item: item[1] - item[0]):
            positions = [p for _, p in part]
            content: list[int | None] = []
            for p in positions:
                if p not in ops:
                    content.append(p)
                elif ops[p] == rule.split:
                    content += [None, p]
            sources |= zip(positions, content + [None] * len(positions), strict=False)
        original = frozenset(p for p, source in sources.items() if source in self.original)
        moves: list[Move] = []
        written: dict[int, tuple[int, Likely]] = {}
        for p, source in sources.items():
            new = writes.get(source) if source is not None and source not in ops else None
            kept = None if new is not None and new.token == rule.mask else source
            if new is not None and kept is not None:
                written[p] = kept, new
            if kept != p and not (kept is None and ids[p] == rule.mask):
                moves.append(Move(kept, p))
        return IndelStep(self._replace(original=original), tuple(moves), written)


def _best(candidates: Sequence[Likely], banned: Collection[int | None]) -> Likely:
    """The most likely token that is not banned; the most likely one where all are."""
    return next((likely for likely in candidates if likely.token not in banned), candidates[0])


def _chosen(
    masked: Sequence[int], num_original: int, likely: Mapping[int, Likely], rule: IndelRule
) -> list[int]:
    """The masks to fill: the sure ones if these are enough, else the most probable. One more is enough than there are
    masks that are not original, so that one that is gets filled."""
    enough = 1 + len(masked) - num_original
    sure = [p for p in masked if likely[p].probability > rule.confidence_threshold]
    return sure if len(sure) >= enough else sorted(masked, key=lambda p: -likely[p].probability)[:enough]
