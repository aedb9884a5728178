"""IndelBlock: a block whose tokens are filled, edited, deleted and inserted. Each call is one `step`.

A token is written like any other, and DELETE and SPLIT as well: DELETE then drops its position, SPLIT puts a mask
before what stood there. What is too long for the block is lost at its end, what is too short is filled up with masks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple, TypeAlias

from lopa_ray.protocol.outcome import Decision, Shift
from lopa_ray.protocol.plan import Fill

Ids = Mapping[int, int]  # position → token, ascending: what may be written, without prompt and given tokens
Candidates = Mapping[int, Sequence[Decision]]  # position → its most likely tokens, most likely first
IndelStep: TypeAlias = (
    "tuple[IndelBlock, Shift, list[Decision]]"  # the block after a call, its shift, its fills
)


class IndelRule(NamedTuple):
    """The constants of all blocks of a request."""

    special: tuple[int, int | None, int | None]  # MASK, DELETE, SPLIT
    confidence_threshold: float
    editing_threshold: float
    max_post_steps: int
    max_calls: int  # calls on a block before the final one, at most


class IndelBlock(NamedTuple):
    """A block between two calls."""

    original: frozenset[int]  # positions of what was masked when the block began, wherever it has moved
    calls: int = 0
    post_steps: int = 0  # calls that began without an original mask
    inputs: frozenset[tuple[int, ...]] = frozenset()  # the tokens that calls have seen
    written: frozenset[Fill] = frozenset()  # all that calls have written, where they wrote it
    is_final: bool = False  # whether no call follows

    @property
    def num_candidates(self) -> int:
        """How many of a position's most likely tokens `step` has to know: one is not special, and one is neither the
        mask nor was written there."""
        return 3 + max(Counter(position for position, _ in self.written).values(), default=1)

    def step(self, ids: Ids, candidates: Candidates, rule: IndelRule) -> IndelStep:
        """A call on these tokens. Content moves first, then tokens are written where they are to stand."""
        mask, tokens = rule.special[0], tuple(ids.values())
        masked = [p for p, token in ids.items() if token == mask]
        original = self.original.intersection(masked)
        block = self._replace(calls=self.calls + 1, post_steps=self.post_steps + (not original))
        final = block.calls > rule.max_calls or (not original and block.post_steps >= rule.max_post_steps)
        likely = {p: _best(candidates[p], (mask,) if p in original and not final else ()) for p in ids}
        filled = [p for p in masked if likely[p].probability > rule.confidence_threshold]
        # One more is enough than there are masks that are not original, so that one that is gets filled.
        enough = 1 + len(masked) - len(original)
        if final or not original:
            filled = masked
        elif len(filled) < enough:
            filled = sorted(masked, key=lambda p: -likely[p].probability)[:enough]
        if rule.max_post_steps == 0 and original <= {*filled}:
            final, filled = True, masked
        writes = {
            p: likely[p]
            for p, token in ids.items()
            if p in filled
            or (token not in (mask, likely[p].token) and likely[p].probability > rule.editing_threshold)
        }
        changes = [p for p in writes if likely[p].token != ids[p]]
        if not writes:
            return block._replace(is_final=True), Shift(), []
        if final:
            writes = {p: _best(candidates[p], rule.special) for p in writes}
        elif changes and tokens in self.inputs:
            # The same would follow as before: the least probable change takes a token that was never written there.
            at = min(changes, key=lambda p: likely[p].probability)
            banned = {token for position, token in self.written if position == at}
            writes[at] = _best(candidates[at], {*banned, mask} if at in original else banned)
        return block._replace(
            inputs=self.inputs | {tokens},
            written=self.written | {decision.fill for decision in writes.values()},
            is_final=final,
        )._moved(ids, writes, rule)

    def _moved(self, ids: Ids, writes: Mapping[int, Decision], rule: IndelRule) -> IndelStep:
        """Carry out DELETE and SPLIT. The part between two given tokens is a block of its own."""
        mask, delete, split = rule.special
        ops = {p: new.token for p, new in writes.items() if new.token in (delete, split)}
        sources: dict[int, int | None] = {}
        inserted, deletions = [], set()
        for _, part in groupby(enumerate(ids), lambda item: item[1] - item[0]):
            positions = [p for _, p in part]
            content: list[int | None] = []
            for p in positions:
                if len(content) >= len(positions):
                    break
                if ops.get(p, split) != split:
                    deletions.add(positions[len(content)])
                    continue
                if p in ops:
                    inserted.append(positions[len(content)])
                    content.append(None)
                content.append(p)
            sources |= zip(positions, content + [None] * len(positions), strict=False)
        moves, filled = [], []
        for p, source in sources.items():
            new = None if source is None or source in ops else writes.get(source)
            emptied = source is None or (new is not None and new.token == mask)
            if new is not None and not emptied:
                filled.append(replace(new, position=p))
            if (ids[p] != mask) if emptied else source != p:
                moves.append((None if emptied else source, p))
        original = frozenset(p for p, source in sources.items() if source in self.original)
        shift = Shift(tuple(moves), tuple(inserted), tuple(sorted(deletions)))
        return self._replace(original=original), shift, filled


def _best(candidates: Sequence[Decision], banned: Collection[int | None]) -> Decision:
    """The most likely token that is not banned; the most likely one where all are."""
    return next((each for each in candidates if each.token not in banned), candidates[0])
