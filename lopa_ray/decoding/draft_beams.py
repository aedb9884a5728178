"""Beams of a model's draft head: what may follow the answer, as guesses for one causal pass to verify at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lopa_ray.decoding.branch_budget import CostBudget
from lopa_ray.decoding.guesses import Guess
from lopa_ray.protocol.scoring import MAX_DRAFT_BEAMS, MAX_DRAFT_DEPTH

Beam = list[tuple[int, float]]
"""Tokens that may follow, each with the probability that it and all before it are right."""

MIN_PROBABLE = 0.01  # a less probable token is not verified


def beams_of(numbers: npt.NDArray[np.float64]) -> list[Beam]:
    """The beams that `BranchReport.memory` has in the row of a token, fp64 [columns]. Padding has no probability."""
    tokens, probable = numbers.reshape(2, MAX_DRAFT_BEAMS, MAX_DRAFT_DEPTH).tolist()
    return [
        [(int(token), right) for token, right in zip(*beam, strict=True) if right >= MIN_PROBABLE]
        for beam in zip(tokens, probable, strict=True)
    ]


def choose_beams(beams: list[Beam], budget: CostBudget) -> list[Guess]:
    """As many guesses as the budget takes, one at least. Each next one has the most probable tokens that no guess
    before it has after the same tokens."""
    gained: dict[Guess, float] = {}
    guesses: list[Guess] = []
    for _ in range(budget.most):
        best = max(beams, key=lambda beam: sum(_new(beam, gained).values()), default=[])
        new = _new(best, gained)
        gain = sum(new.values())
        if guesses and not (new and budget.wants(gain)):
            break
        gained |= new
        guesses.append(tuple(token for token, _ in best))
        budget.take(gain)
    return guesses[: budget.num_branches]


def _new(beam: Beam, gained: dict[Guess, float]) -> dict[Guess, float]:
    tokens = tuple(token for token, _ in beam)
    prefixes = {tokens[: at + 1]: right for at, (_, right) in enumerate(beam)}
    return {prefix: right for prefix, right in prefixes.items() if prefix not in gained}
