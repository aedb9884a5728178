"""Beams: what may follow the answer, as guesses for one causal pass to verify at once. A model's draft head makes them,
and prompt lookup finds one in the prompt and the answer. Published: LLMA (arXiv 2304.04487)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, cycle, islice
from operator import mul

import numpy as np
import numpy.typing as npt

from lopa_ray.decoding.branch_budget import CostBudget
from lopa_ray.decoding.guesses import Guess
from lopa_ray.protocol.scoring import MAX_DRAFT_BEAMS, MAX_DRAFT_DEPTH

Beam = list[tuple[int, float]]
"""Tokens that may follow, each with the probability that it and all before it are right."""

MIN_PROBABLE = 0.01  # a less probable token is not verified

LOOKUP_WINDOW = 4096  # tokens in which prompt lookup looks
MAX_MATCH = 8  # tokens before two places that it compares
HEAD_SHARE, REPEAT_PRIOR = 0.75, 7.0
"""A token of a head is right with about this share of the probability that the head gives it; and where n tokens stood
before, the next one is repeated too with about n² / (n² + the prior). Measured with SmolLM2 and its head on prompts
whose words the head was not trained on."""


def beams_of(numbers: npt.NDArray[np.float64]) -> list[Beam]:
    """The beams that `BranchReport.memory` has in the row of a token, fp64 [columns]. Padding has no probability."""
    tokens, probable = numbers.reshape(2, MAX_DRAFT_BEAMS, MAX_DRAFT_DEPTH).tolist()
    return [
        [
            (int(token), right * HEAD_SHARE**depth)
            for depth, (token, right) in enumerate(zip(*beam, strict=True), 1)
            if right >= MIN_PROBABLE
        ]
        for beam in zip(tokens, probable, strict=True)
    ]


def repeated_beam(ids: Sequence[int], most: int) -> Beam:
    """So many tokens: those that followed the last two of `ids` when these last stood there, and then the same again.
    Empty if they never did."""
    ids = ids[-LOOKUP_WINDOW:]
    if len(ids) < 3:
        return []
    seen = np.array(ids, np.int64)
    pairs = np.flatnonzero((seen[:-2] == seen[-2]) & (seen[1:-1] == seen[-1]))
    if not pairs.size:
        return []
    begin, repeated = int(pairs[-1]) + 2, 2
    while repeated < min(begin, MAX_MATCH) and ids[begin - 1 - repeated] == ids[-1 - repeated]:
        repeated += 1
    squares = ((repeated + at) ** 2 for at in range(most))
    probable = accumulate((square / (square + REPEAT_PRIOR) for square in squares), mul)
    return list(zip(islice(cycle(ids[begin:]), most), probable, strict=True))


def beside_repeated(beams: list[Beam], repeated: Beam) -> list[Beam]:
    """A head's beams and a repeated one. If that begins with another token, it leaves a beam the rest of the
    probability."""
    if not repeated:
        return beams
    token, right = repeated[0]
    rest = [
        [(drafted, probable * (1 - right)) for drafted, probable in beam]
        if beam[:1] and beam[0][0] != token
        else beam
        for beam in beams
    ]
    return [*rest, repeated]


def choose_beams(beams: list[Beam], budget: CostBudget, trust: float = 1.0) -> tuple[list[Guess], float]:
    """As many guesses as the budget takes, one at least, and how many tokens of the first one should be right. Each
    next one has the most probable tokens that no guess before it has after the same tokens. `trust`: the share of what
    beams promise that they have kept so far."""
    gained: dict[Guess, float] = {}
    guesses: list[Guess] = []
    promised = 0.0
    for _ in range(budget.most):
        best = max(beams, key=lambda beam: sum(_new(beam, gained).values()), default=[])
        new = _new(best, gained)
        gain = trust * sum(new.values())
        if guesses and not (new and budget.wants(gain)):
            break
        if not guesses:
            promised = sum(new.values())
        gained |= new
        guesses.append(tuple(token for token, _ in best))
        budget.take(gain)
    return guesses[: budget.num_branches], promised


def _new(beam: Beam, gained: dict[Guess, float]) -> dict[Guess, float]:
    tokens = tuple(token for token, _ in beam)
    prefixes = {tokens[: at + 1]: right for at, (_, right) in enumerate(beam)}
    return {prefix: right for prefix, right in prefixes.items() if prefix not in gained}
