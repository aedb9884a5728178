"""PrefixIndex: which prompts' K/V the workers still have, and what of them a new request may take. No I/O.

The scheduler owns it, and the steps' plans tell all workers alike what to save, to load and to evict, so that
every worker has the same (`PrefixStore`). Sessions do not depend on it: a request whose prompt begins like an
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

APPROXIMATE_GRANULARITY = 16
"""Positions after which an approximate prefix may end."""


@dataclass(frozen=True, slots=True)
class PrefixHashes:
    """The prefixes of a plan's inputs that might be there, or be stored: where each ends, and the digest of its ids."""

    ends: tuple[int, ...]
    digests: tuple[bytes, ...]


@dataclass(eq=False, slots=True)
class _Node:
    """K/V that were stored together: of a prompt, less what was there already (`parent`, up to where this begins)."""

    id: int
    span: range
    parent: _Node | None
    hashes: PrefixHashes
    children: int = 0
    last_used: int = 0
    """When, for eviction."""

    def path(self) -> Iterator[_Node]:
        """This node, then all its ancestors."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent


class PrefixIndex:
    """An index of at most `positions` positions; evicts the least recently used."""

    def __init__(self, positions: int, approximate: bool = False) -> None:
        """With 0 positions it finds and stores nothing."""
        self.positions = positions
        self.approximate = approximate
        self.hit_requests = 0
        """Requests that began with a stored prefix."""
        self.hit_positions = 0
        """Positions that they did not have to compute."""
        self._ready: dict[int, _Node] = {}
        """By id: those that all workers have."""
        self._reserved: dict[int, _Node] = {}
        """By id: those that the next step has the workers save."""
        self._by_digest: dict[bytes, _Node] = {}
        """Digest → a ready node that has the last of its positions."""
        self._evicted: list[int] = []
        self._used_positions = 0
        self._next_id = 0
        self._clock = 0

    @classmethod
    def from_settings(cls, model: ModelSettings) -> Self:
        """An empty index, as the settings have it."""
        return cls(model.prefix_cache_positions, model.prefix_cache == "approximate")

    def hash_prefixes(self, plan: Plan) -> PrefixHashes:
        """The hashes of a plan's prefixes; empty unless it is a request's first plan and stages K/V of the prompt."""
        if not self.positions or plan.step > 1 or not plan.to_stage:
            return PrefixHashes((), ())
        first, stop = plan.to_stage[0].start, plan.to_stage[0].stop
        if plan.start or first or stop > plan.scored.start:
            return PrefixHashes((), ())
        if self.approximate:
            ends = [*range(APPROXIMATE_GRANULARITY, stop, APPROXIMATE_GRANULARITY), stop]
        else:
            # What sees beyond its own end sees what follows, and so does all behind it.
            causal = all(end == kv_stop for end, kv_stop in plan.branches[0].segments)
            ends = [end for end, _ in plan.branches[0].segments if end <= stop] if causal else []
        hasher, digests, at = blake2b(digest_size=16), list[bytes](), 0
        for end in ends:
            hasher.update(array("q", [end, *plan.canvas[at:end]]).tobytes())
            digests.append(hasher.digest())
            at = end
        return PrefixHashes(tuple(ends), tuple(digests))

    def match(self, hashes: PrefixHashes) -> tuple[StoredPrefix, ...]:
        """The longest prefix that is there, in parts, from position 0 on. Changes nothing."""
        node, end = self._longest_match(hashes)
        parts: list[StoredPrefix] = []
        for ancestor in node.path() if node is not None else ():
            parts.append(StoredPrefix(ancestor.id, range(ancestor.span.start, end)))
            end = ancestor.span.start
        return tuple(reversed(parts))

    def _longest_match(self, hashes: PrefixHashes) -> tuple[_Node | None, int]:
        for end, digest in zip(reversed(hashes.ends), reversed(hashes.digests), strict=True):
            node = self._by_digest.get(digest)
            # The row before a request's first mask may have to score it: it is stored for where a node ends.
            if node is not None and (end < hashes.ends[-1] or end == node.span.stop):
                return node, end
        return None, 0

    def touch(self, parts: tuple[StoredPrefix, ...]) -> None:
        """Count a hit: a request has begun with these parts, which become the most recently used."""
        if parts:
            self.hit_requests += 1
            self.hit_positions += parts[-1].span.stop
            self._mark_used(self._ready[parts[-1].prefix_id])

    def reserve(self, hashes: PrefixHashes) -> StoredPrefix | None:
        """Make room for what a request has computed and is not here yet; None where it does not fit, or is here.

        It is found once `insert` was called.
        """
        parent, start = self._longest_match(hashes)
        if not hashes.ends or start == hashes.ends[-1]:
            return None
        if any(node.hashes.digests[-1] == hashes.digests[-1] for node in self._reserved.values()):
            return None
        span = range(start, hashes.ends[-1])
        pinned = [] if parent is None else list(parent.path())
        if len(span) > self.positions or not self._evict_for(len(span), pinned):
            return None
        self._next_id += 1
        node = self._reserved[self._next_id] = _Node(self._next_id, span, parent, hashes)
        self._used_positions += len(span)
        if parent is not None:
            parent.children += 1
        return StoredPrefix(node.id, span)

    def _evict_for(self, wanted: int, pinned: list[_Node]) -> bool:
        while self._used_positions + wanted > self.positions:
            leaves = [node for node in self._ready.values() if not node.children and node not in pinned]
            if not leaves:
                return False
            oldest = min(leaves, key=lambda node: node.last_used)
            del self._ready[oldest.id]
            for digest in oldest.hashes.digests:
                if self._by_digest.get(digest) is oldest:
                    del self._by_digest[digest]
            self._remove(oldest)
        return True

    def insert(self, entry: StoredPrefix) -> None:
        """Make a reserved entry available: all workers have saved it."""
        node = self._ready[entry.prefix_id] = self._reserved.pop(entry.prefix_id)
        for end, digest in zip(node.hashes.ends, node.hashes.digests, strict=True):
            if end > node.span.start:
                self._by_digest.setdefault(digest, node)
        self._mark_used(node)

    def cancel_reservation(self, entry: StoredPrefix) -> None:
        """Drop a reserved entry: its request has ended before the workers saved it."""
        self._remove(self._reserved.pop(entry.prefix_id))

    def _remove(self, node: _Node) -> None:
        self._used_positions -= len(node.span)
        self._evicted.append(node.id)
        if node.parent is not None:
            node.parent.children -= 1

    def _mark_used(self, node: _Node) -> None:
        self._clock += 1
        for ancestor in node.path():
            ancestor.last_used = self._clock

    @property
    def pending_evictions(self) -> tuple[int, ...]:
        """Ids that the next step has the workers evict, before they save anything new."""
        return tuple(self._evicted)

    def confirm_evictions(self, ids: tuple[int, ...]) -> None:
        """The workers have evicted these."""
        self._evicted = [prefix_id for prefix_id in self._evicted if prefix_id not in ids]

    def clear(self) -> None:
        """Drop all: the workers have nothing stored any more."""
        self._ready, self._reserved, self._by_digest, self._evicted, self._used_positions = {}, {}, {}, [], 0
