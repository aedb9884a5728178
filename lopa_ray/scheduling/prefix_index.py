"""PrefixIndex: records which prompts' K/V the workers store, and finds K/V that a new request can use.

Plans tell all workers what to save, load and evict, so every worker stores the same K/V (see `Slots.prefixes`).

The K/V of a row depend on all positions that the row sees. Under block-causal attention these end with the row's own
block, so an exact prefix is a run of whole blocks from the start of a prompt: its token ids and the ends of its blocks.
Under a causal mask (`Branch.causal_stop`) a prefix may end anywhere. Under full attention the K/V depend on later
tokens too; the `approximate` variant uses K/V of another prompt that begins with the same tokens nevertheless.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self, TypeAlias

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.protocol.plan import Plan, StoredPrefix

GRANULARITY = 16  # positions: a multiple of this may end an approximate or causal prefix, as the prompt does


PrefixHashes: TypeAlias = dict[int, bytes]
"""The prefixes of a plan's inputs that can be looked up or stored: end position (exclusive), ascending → digest of the
token ids."""


@dataclass(eq=False, slots=True)
class _Node:
    """K/V of a prompt that were stored together: the positions that were not stored before."""

    id: int
    span: range  # positions whose K/V this node has
    parent: _Node | None  # the node whose path has the positions before `span`; None if `span` begins at 0
    hashes: PrefixHashes
    children: int = 0

    def path(self) -> Iterator[_Node]:
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.parent


class PrefixIndex:
    """An index of stored prefixes with at most `positions` positions. It evicts the least recently used prefixes."""

    def __init__(self, positions: int, approximate: bool = False) -> None:
        """An index with 0 `positions` finds and stores nothing."""
        self.positions = positions
        self.approximate = approximate
        self.hit_requests = 0
        self.hit_positions = 0
        self._ready: dict[int, _Node] = {}  # id → node that all workers store, the least recently used first
        self._reserved: dict[int, _Node] = {}  # id → node that the workers save in the next step
        self._by_digest: dict[bytes, _Node] = {}  # of a prefix → ready node with its last position
        self._evicted: list[int] = []
        self._used_positions = 0
        self._next_id = 0

    @classmethod
    def from_settings(cls, model: ModelSettings) -> Self:
        positions = 0 if model.prefix_cache == "none" else model.max_num_seqs * model.max_model_len
        return cls(positions, model.prefix_cache == "approximate")

    def hash_prefixes(self, plan: Plan) -> PrefixHashes:
        """Empty unless the plan is a request's first plan and stages K/V of the prompt."""
        branch = plan.branches[0]
        if not self.positions or plan.step > 1 or not branch.to_stage:
            return {}
        first, stop = branch.to_stage[0].start, branch.to_stage[0].stop
        if plan.start or first or stop > branch.scored.start:
            return {}
        is_causal = branch.causal_stop >= stop
        if self.approximate or is_causal:
            ends = [*range(GRANULARITY, stop, GRANULARITY), stop]
        else:
            # A segment that sees positions after its own end depends on them, and so do all segments after it.
            causal = all(end == kv_stop for end, kv_stop in branch.segments)
            ends = [end for end, _ in branch.segments if end <= stop] if causal else []
        # The same tokens have other K/V under a causal mask than under no mask.
        hasher = blake2b(digest_size=16, person=b"causal" if is_causal else b"")
        hashes, at = PrefixHashes(), 0
        for end in ends:
            hasher.update(array("q", [end, *plan.canvas[at:end]]).tobytes())
            hashes[end] = hasher.digest()
            at = end
        return hashes

    def match(self, hashes: PrefixHashes) -> tuple[StoredPrefix, ...]:
        """The longest stored prefix, in parts that begin at position 0. The index is not modified."""
        node, end = self._longest_match(hashes)
        parts: list[StoredPrefix] = []
        for ancestor in node.path() if node is not None else ():
            parts.append(StoredPrefix(ancestor.id, range(ancestor.span.start, end)))
            end = ancestor.span.start
        return tuple(reversed(parts))

    def _longest_match(self, hashes: PrefixHashes) -> tuple[_Node | None, int]:
        whole = max(hashes, default=0)
        for end, digest in reversed(hashes.items()):
            node = self._by_digest.get(digest)
            # With shifted logits the row before a request's first mask scores that mask. A node stores this row only
            # for its last position, so a whole prompt matches only where a node ends.
            if node is not None and (end < whole or end == node.span.stop):
                return node, end
        return None, 0

    def touch(self, parts: tuple[StoredPrefix, ...]) -> None:
        """Count a hit by a request that has begun with these parts, and mark them as the most recently used. A step
        that was in flight at the same time may have evicted them: workers do that later."""
        if parts:
            self.hit_requests += 1
            self.hit_positions += parts[-1].span.stop
            node = self._ready.get(parts[-1].prefix_id)
            if node is not None:
                self._mark_used(node)

    def reserve(self, hashes: PrefixHashes) -> StoredPrefix | None:
        """Reserve space for the K/V of a request's prompt; `match` finds them after `insert`. None: they do not fit, or
        are stored or reserved already."""
        parent, start = self._longest_match(hashes)
        stop = max(hashes, default=0)
        if start == stop:
            return None
        if any(node.hashes[node.span.stop] == hashes[stop] for node in self._reserved.values()):
            return None
        span = range(start, stop)
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
            leaves = (node for node in self._ready.values() if not node.children and node not in pinned)
            oldest = next(leaves, None)
            if oldest is None:
                return False
            del self._ready[oldest.id]
            for digest in oldest.hashes.values():
                if self._by_digest.get(digest) is oldest:
                    del self._by_digest[digest]
            self._remove(oldest)
        return True

    def insert(self, entry: StoredPrefix) -> None:
        node = self._ready[entry.prefix_id] = self._reserved.pop(entry.prefix_id)
        for end, digest in node.hashes.items():
            if end > node.span.start:
                self._by_digest.setdefault(digest, node)
        self._mark_used(node)

    def cancel_reservation(self, entry: StoredPrefix) -> None:
        """Drop a reserved entry whose request ended before the workers saved it."""
        self._remove(self._reserved.pop(entry.prefix_id))

    def _remove(self, node: _Node) -> None:
        self._used_positions -= len(node.span)
        self._evicted.append(node.id)
        if node.parent is not None:
            node.parent.children -= 1

    def _mark_used(self, node: _Node) -> None:
        for used in node.path():
            self._ready[used.id] = self._ready.pop(used.id)

    @property
    def pending_evictions(self) -> tuple[int, ...]:
        """Ids that the workers evict in the next step, before they save new entries."""
        return tuple(self._evicted)

    def confirm_evictions(self, ids: tuple[int, ...]) -> None:
        self._evicted = [prefix_id for prefix_id in self._evicted if prefix_id not in ids]

    def clear(self) -> None:
        """Drop all entries, after the workers have dropped their stored prefixes."""
        self._ready, self._reserved, self._by_digest, self._evicted, self._used_positions = {}, {}, {}, [], 0
