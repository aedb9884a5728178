"""WorkerInfo: facts about a loaded model that a worker reports to its master."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.protocol.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The same for all workers of a group."""

    vocabulary: Vocabulary
    position_bytes: int
    """Bytes of K/V per cached position."""
    dtype: str
    """`model.dtype`, or what auto stands for in the worker's group."""
