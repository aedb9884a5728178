"""Noise: the random tokens and numbers of a request whose canvases begin as random tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lopa_ray.protocol.keyed_random import keyed_uniforms


class SeededNoise:
    """Noise that depends on a request's seed alone; see `keyed_uniform`. Each value follows from its arguments, so a
    step can be planned again. Calls count from 1 on."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._seed, self._vocab_size = seed, vocab_size

    def first_canvas(self, positions: range) -> tuple[int, ...]:
        """The token ids that the canvas at `positions` begins with; all are equally likely."""
        return self._tokens(0, positions)

    def draws(self, call: int, positions: range) -> tuple[float, ...]:
        """The numbers from 0 to 1 that the tokens of a call on a canvas are drawn by."""
        return tuple(self._uniforms(2 * call - 1, positions).tolist())

    def new_tokens(self, call: int, positions: range) -> tuple[int, ...]:
        """The token ids that a call puts at the positions that it does not accept."""
        return self._tokens(2 * call, positions)

    def _tokens(self, key: int, positions: range) -> tuple[int, ...]:
        ids = (self._uniforms(key, positions) * self._vocab_size).astype(np.int64)
        return tuple(ids.tolist())

    def _uniforms(self, key: int, positions: range) -> npt.NDArray[np.float64]:
        count = len(positions)
        seeds, keys = np.full(count, self._seed, np.uint64), np.full(count, key, np.int64)
        return keyed_uniforms(seeds, keys, np.arange(positions.start, positions.stop))
