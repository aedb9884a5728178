"""Random numbers without a generator: each is a function of what it is for."""

from __future__ import annotations


def keyed_uniform(seed: int, step: int, position: int) -> float:
    """A number in [0, 1) that depends on (seed, step, position) alone.

    Counter-based (splitmix64 finaliser), so workers need no generator state.
    """
    mask = (1 << 64) - 1
    state = seed & mask
    for word in (step, position):
        state = (state + 0x9E3779B97F4A7C15 * (word + 1)) & mask
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
        state ^= state >> 31
    return (state >> 11) * 2.0**-53
