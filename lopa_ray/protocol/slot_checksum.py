"""SlotChecksum: what a slot of a worker's K/V cache holds, for comparison between workers."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.protocol.plan import Spans


@dataclass(frozen=True, slots=True)
class SlotChecksum:
    """A checksum of a slot, for comparison between workers. It must be equal on all workers with two-phase commits, and
    on CPU with any commits."""

    request_id: int | None
    spans: Spans
    digest: str  # SHA-256 of K/V and boundary row
    magnitude: float  # sum of the absolute values of K/V and boundary row

    def agrees(self, other: SlotChecksum, tolerance: float = 0.0) -> bool:
        """Whether two checksums are equal, or their magnitudes differ by at most `tolerance`, a relative difference.
        The tolerance is for single-phase commits on devices whose rounding depends on shapes."""
        if (self.request_id, self.spans) != (other.request_id, other.spans):
            return False
        allowed = tolerance * max(self.magnitude, other.magnitude)
        is_near = tolerance > 0 and abs(self.magnitude - other.magnitude) <= allowed
        return self.digest == other.digest or is_near
