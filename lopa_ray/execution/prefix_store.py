"""PrefixStore: K/V of prompts that a worker stores beyond their requests, as `PrefixIndex` decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from lopa_ray.errors import ProtocolError
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.protocol.plan import StoredPrefix


class PrefixStore:
    """Payloads of a cache by id: the K/V of a span, and its last hidden row (see `KVCache.boundary`)."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._payloads: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._payloads)

    def save(self, entry: StoredPrefix, slot: int) -> None:
        """Save what a slot has at the entry's span, which has just been committed there."""
        self._payloads[entry.prefix_id] = self._cache.read_payload(slot, (entry.span,))

    def load(self, parts: Sequence[StoredPrefix], slot: int) -> None:
        """Write K/V where a forward would have, and the last part's hidden row. Nothing is committed.

        Raises ProtocolError for an entry that is not here.
        """
        for part in parts:
            payload = self._payloads.get(part.prefix_id)
            if payload is None:
                raise ProtocolError(
                    f"prefix {part.prefix_id} is not here; stored are {sorted(self._payloads)}"
                )
            kv, boundary = self._cache.split_payload(payload)
            span = slice(part.span.start, part.span.stop)
            self._cache.data[slot, :, :, :, span] = kv[:, :, :, : len(part.span)]
            self._cache.boundary[slot] = boundary

    def evict(self, ids: Iterable[int]) -> None:
        """Ids that are not here are passed over: a step may be repeated."""
        for prefix_id in ids:
            self._payloads.pop(prefix_id, None)

    def clear(self) -> None:
        """Evict all."""
        self._payloads.clear()
