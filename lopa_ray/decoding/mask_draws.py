"""MaskDraws: which positions of a target are masked in each draw of a Monte-Carlo estimate of its likelihood (LLaDA,
arXiv 2502.09992, equation 6). As in its evaluation code, the draws' numbers of masks lie evenly apart, from a random
first one on, and wrap around."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

import numpy as np
import numpy.typing as npt

from lopa_ray.protocol.keyed_random import keyed_uniform, keyed_uniforms


@dataclass(frozen=True, slots=True, eq=False)
class MaskDraws:
    """The distinct masks of all draws, which matter by how often they were drawn. L: positions of the target."""

    masks: npt.NDArray[np.bool_]
    """[distinct masks, L], in lexicographic order; True: masked."""
    weights: npt.NDArray[np.float64]
    """[distinct masks]: the factor of the summed log-probabilities of a mask's positions. It is L ÷ masked positions
    × the share of the draws that had this mask."""

    @classmethod
    def of(cls, length: int, mc_num: int, key: int) -> Self:
        """`mc_num` draws for a target of `length` tokens, 1 or more each, by a key of 64 bits."""
        position = np.arange(length)
        masks = np.zeros((mc_num, length), np.bool_)
        for draw, num_masked in enumerate(num_masked_of_draws(length, mc_num, key)):
            seeds, steps = np.full(length, key, np.uint64), np.full(length, draw + 1)
            order = np.argsort(keyed_uniforms(seeds, steps, position), kind="stable")
            masks[draw, order[:num_masked]] = True
        distinct, counts = np.unique(masks, axis=0, return_counts=True)
        return cls(distinct, counts / mc_num * length / distinct.sum(1))


def num_masked_of_draws(length: int, mc_num: int, key: int) -> list[int]:
    """How many of `length` positions each draw masks. Halves are rounded up, so that every number is as likely as any
    other; LLaDA's code rounds them to even numbers, by which 3 of 4 draws from 2 positions mask both."""
    first = 1 + int(keyed_uniform(key, 0, 0) * length)
    apart = ((2 * draw * length + mc_num) // (2 * mc_num) for draw in range(mc_num))
    return [(first + steps - 1) % length + 1 for steps in apart]


def draw_key(seed: int, prefix: list[int], target: list[int]) -> int:
    """64 bits that depend on the seed and the tokens alone, so that a request has the same draws wherever it runs."""
    numbers = np.array([seed, len(prefix), *prefix, *target], "<i8")
    return int.from_bytes(blake2b(numbers.tobytes(), digest_size=8).digest(), "little")
