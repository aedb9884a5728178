"""PrefixStore: the K/V of prompts that a worker keeps after their requests have ended. `PrefixIndex` selects them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from lopa_ray.errors import ProtocolError
from lopa_ray.execution.kv_cache import KVCache
from lopa_ray.protocol.plan import StoredPrefix


class PrefixStore:
    """Stored payloads by id. A payload has the K/V of a span and its last hidden row (see `KVCache.boundary`)."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._payloads: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self._payloads)

    def save(self, entry: StoredPrefix, slot: int) -> None:
        self._payloads[entry.prefix_id] = self._cache.read_payload(slot, (entry.span,))

    def load(self, parts: Sequence[StoredPrefix], slot: int) -> None:
        """Write the stored K/V into a slot, and the hidden row of the last part. The spans are not marked as committed.

        Raises ProtocolError for an entry that is not stored here.
        """
        for part in parts:
            payload = self._payloads.get(part.prefix_id)
            if payload is None:
                raise ProtocolError(
                    f"prefix {part.prefix_id} is not stored; stored: {sorted(self._payloads)}"
                )
            self._cache.copy_payload(slot, (part.span,), payload)

    def evict(self, ids: Iterable[int]) -> None:
        """Ids that are not stored are ignored, because a step may be repeated."""
        for prefix_id in ids:
            self._payloads.pop(prefix_id, None)

    def clear(self) -> None:
        self._payloads.clear()
