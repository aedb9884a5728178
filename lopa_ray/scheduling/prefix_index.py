"""PrefixIndex: which prompts' K/V the workers still have, and what of them a new request may take. No I/O.

The scheduler owns it, and the steps' plans tell all workers alike what to keep, to take and to forget, so that
every worker has the same (`PrefixStore`). Sessions know nothing of it: a request whose prompt begins like an
earlier one makes the same steps, with fewer rows in the first.

K/V depend on all that a row sees. Under block-causal attention that ends with the row's own block, so they are
found by the ids up to there and by where blocks end (`exact`): true block prefixes, where a prompt is many blocks,
and whole prompts, where it is one. Rows are saved by whole blocks, which does not even change how the others are
rounded. Under full attention, or within a block, what follows has its part in them: taking those of another text
that only begins alike is the `approximate` variant.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.protocol.plan import Plan, StoredPrefix

PIECE = 16
"""Positions after which an approximate prefix may end."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The prefixes of a plan's inputs that might be there, or be kept: where each ends, and by what it is found."""

    ends: tuple[int, ...]
    keys: tuple[bytes, ...]


@dataclass(eq=False, slots=True)
class _Node:
    """K/V that were kept together: of a prompt, less what was there already (`parent`, up to where this begins)."""

    id: int
    span: range
    parent: _Node | None
    chain: Chain
    children: int = 0
    used: int = 0
    """When, for eviction."""

    def path(self) -> Iterator[_Node]:
        """This one, and all that it stands on."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent


class PrefixIndex:
    """An index of at most `positions` positions; the least recently used make room."""

    def __init__(self, positions: int, approximate: bool = False) -> None:
        """With 0 positions it finds nothing and takes nothing in."""
        self.positions = positions
        self.approximate = approximate
        self.hits = 0
        """Requests that took a prefix from here."""
        self.saved = 0
        """Positions that they did not have to compute."""
        self._ready: dict[int, _Node] = {}
        """By id: those that all workers have."""
        self._reserved: dict[int, _Node] = {}
        """By id: those that the next steps order."""
        self._found: dict[bytes, _Node] = {}
        """Key → a ready node that has the last of its positions."""
        self._forget: list[int] = []
        self._used = 0
        self._next_id = 0
        self._clock = 0

    @classmethod
    def from_settings(cls, model: ModelSettings) -> Self:
        """An empty index, as the settings have it."""
        return cls(model.prefix_cache_positions, model.prefix_cache == "approximate")

    def chain(self, plan: Plan) -> Chain:
        """Of a plan; empty unless it is a request's first one, and keeps what it has computed of the prompt."""
        if not self.positions or plan.step > 1 or not plan.to_stage:
            return Chain((), ())
        first, kept = plan.to_stage[0].start, plan.to_stage[0].stop
        if plan.start or first or kept > plan.scored.start:
            return Chain((), ())
        if self.approximate:
            ends = [*range(PIECE, kept, PIECE), kept]
        else:
            # What sees beyond its own end sees what follows, and so does all behind it.
            causal = all(stop == kv_stop for stop, kv_stop in plan.branches[0].segments)
            ends = [stop for stop, _ in plan.branches[0].segments if stop <= kept] if causal else []
        digest, keys, at = blake2b(digest_size=16), [], 0
        for end in ends:
            digest.update(array("q", [end, *plan.canvas[at:end]]).tobytes())
            keys.append(digest.digest())
            at = end
        return Chain(tuple(ends), tuple(keys))

    def match(self, chain: Chain) -> tuple[StoredPrefix, ...]:
        """The longest prefix that is there, in parts, from position 0 on. Changes nothing."""
        node, end = self._longest(chain)
        parts: list[StoredPrefix] = []
        for each in node.path() if node is not None else ():
            parts.append(StoredPrefix(each.id, range(each.span.start, end)))
            end = each.span.start
        return tuple(reversed(parts))

    def _longest(self, chain: Chain) -> tuple[_Node | None, int]:
        for end, key in zip(reversed(chain.ends), reversed(chain.keys), strict=True):
            node = self._found.get(key)
            # The row before a request's first mask may have to score it: it is kept for where a node ends.
            if node is not None and (end < chain.ends[-1] or end == node.span.stop):
                return node, end
        return None, 0

    def took(self, parts: tuple[StoredPrefix, ...]) -> None:
        """A request has begun with these."""
        if parts:
            self.hits += 1
            self.saved += parts[-1].span.stop
            self._touch(self._ready[parts[-1].prefix_id])

    def reserve(self, chain: Chain) -> StoredPrefix | None:
        """Make room for what a request has computed and is not here yet; None where it does not fit, or is here.

        It is found from `stored` on.
        """
        parent, start = self._longest(chain)
        if not chain.ends or start == chain.ends[-1]:
            return None
        if any(node.chain.keys[-1] == chain.keys[-1] for node in self._reserved.values()):
            return None
        span = range(start, chain.ends[-1])
        pinned = [] if parent is None else list(parent.path())
        if len(span) > self.positions or not self._make_room(len(span), pinned):
            return None
        self._next_id += 1
        node = self._reserved[self._next_id] = _Node(self._next_id, span, parent, chain)
        self._used += len(span)
        if parent is not None:
            parent.children += 1
        return StoredPrefix(node.id, span)

    def _make_room(self, wanted: int, pinned: list[_Node]) -> bool:
        while self._used + wanted > self.positions:
            leaves = [node for node in self._ready.values() if not node.children and node not in pinned]
            if not leaves:
                return False
            oldest = min(leaves, key=lambda node: node.used)
            del self._ready[oldest.id]
            for key in oldest.chain.keys:
                if self._found.get(key) is oldest:
                    del self._found[key]
            self._drop(oldest)
        return True

    def stored(self, entry: StoredPrefix) -> None:
        """All workers have it."""
        node = self._ready[entry.prefix_id] = self._reserved.pop(entry.prefix_id)
        for end, key in zip(node.chain.ends, node.chain.keys, strict=True):
            if end > node.span.start:
                self._found.setdefault(key, node)
        self._touch(node)

    def discard(self, entry: StoredPrefix) -> None:
        """It is not to come: its request has ended."""
        self._drop(self._reserved.pop(entry.prefix_id))

    def _drop(self, node: _Node) -> None:
        self._used -= len(node.span)
        self._forget.append(node.id)
        if node.parent is not None:
            node.parent.children -= 1

    def _touch(self, node: _Node) -> None:
        self._clock += 1
        for each in node.path():
            each.used = self._clock

    @property
    def to_forget(self) -> tuple[int, ...]:
        """Ids that the next step tells the workers to forget, before they keep anything new."""
        return tuple(self._forget)

    def forgotten(self, ids: tuple[int, ...]) -> None:
        """They have."""
        self._forget = [each for each in self._forget if each not in ids]

    def clear(self) -> None:
        """Nobody has anything any more."""
        self._ready, self._reserved, self._found, self._forget, self._used = {}, {}, {}, [], 0
