"""Sets of tokens as compressed bitmasks in a plan."""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.constraint import BITMASK_CACHE_SIZE, ConstraintState


@lru_cache(BITMASK_CACHE_SIZE)
def decompress_bitmask(bitmask: bytes) -> npt.NDArray[np.uint8]:
    """uint8 [vocabulary ÷ 8, rounded up]: one bit per token, lowest bit first."""
    return np.frombuffer(zlib.decompress(bitmask), np.uint8)


def unpack_bitmask(bitmask: bytes, vocabulary_size: int) -> npt.NDArray[np.bool_]:
    """A compressed bitmask of a plan → whether each token is allowed, bool [vocabulary]."""
    bits = decompress_bitmask(bitmask)
    return np.unpackbits(bits, count=vocabulary_size, bitorder="little").astype(np.bool_)


class TokenBitmasks:
    """The distinct token bitmasks of a plan. Most positions share their bitmask with others."""

    def __init__(self) -> None:
        self._index: dict[bytes, int] = {}

    def add(
        self, state: ConstraintState | None, span: range, *, scores_decided: bool = False
    ) -> tuple[int, ...]:
        """The index of the bitmask of each position of `span`, -1 for one that is not scored."""
        if state is None:
            return ()
        return tuple(
            self._index.setdefault(state.token_bitmask(p), len(self._index))
            if scores_decided or state.is_masked(p)
            else -1
            for p in span
        )

    @property
    def unique(self) -> tuple[bytes, ...]:
        return tuple(self._index)
