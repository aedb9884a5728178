"""SamplingParams: how a token follows from a row of logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Ranking = Literal["probability", "margin", "neg_entropy"]
"""The score that ranks positions: the probability of the chosen token, the gap between the
two best, or the sum of p ln p over the vocabulary."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters by which a token follows from a row of logits. Each draw is keyed by (seed, step, position) and
    nothing else, so it is the same on whichever worker a branch runs, and the same for all branches of a step."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    top_k_first: bool = False  # apply top_k before top_p, not after it
    confidence_temperature: float | None = None
    """Probabilities and scores are of softmax(logits ÷ this); None: of the distribution that tokens are drawn from."""
    precision: Literal["float16", "float32", "float64"] = "float32"  # float16: from rounded logits
    ranking: Ranking = "probability"
    no_eos_before: int = 0  # positions below this never get a token that ends the answer (`min_tokens`)
    stop_token_ids: tuple[int, ...] = ()  # besides EOS, if `no_eos_before` has a use for them
    draws: bool = False  # whether reports have `BranchReport.draws`
    top_logprobs: int = 0  # how many of the most likely tokens each report lists per position
