"""Counter-based random numbers: each is a function of its key alone, so there is no generator state."""

from __future__ import annotations


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
