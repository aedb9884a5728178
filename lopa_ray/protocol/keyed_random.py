"""Counter-based random numbers: each is a function of its key alone, so there is no generator state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def keyed_uniform(seed: int, step: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, step, position) alone, by the finaliser of splitmix64."""
    mask = (1 << 64) - 1
    state = seed & mask
    for counter in (step, position):
        state = (state + 0x9E3779B97F4A7C15 * (counter + 1)) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return (state >> 11) * 2.0**-53


def keyed_uniforms(
    seeds: npt.NDArray[np.uint64], steps: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """`keyed_uniform` of each (seed, step, position), [N] each → float64 [N]."""
    state = seeds.copy()
    for counters in (steps, positions):
        state += np.uint64(0x9E3779B97F4A7C15) * (counters.astype(np.uint64) + np.uint64(1))
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
