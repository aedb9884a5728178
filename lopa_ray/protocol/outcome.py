"""StepOutcome: what a step decided for one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lopa_ray.protocol.plan import Fill

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block after a step; `state` is "active", "to_cache" or "in_cache"."""

    start: int
    stop: int
    state: str
    masks: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """One decided position, with the scores of its token in the pass that chose it."""

    position: int
    token: int
    probability: float
    """After temperature, top-p and top-k."""
    logprob: float
    """Log-probability of the token under the plain softmax, like `top_logprobs`."""
    top_logprobs: tuple[tuple[int, float], ...]
    """The most likely (token, log-probability); empty unless asked for."""

    @property
    def fill(self) -> Fill:
        """Position and token."""
        return self.position, self.token


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step decided for one request. A trace takes this and the step's plan, and nothing else."""

    step: int
    winner: int
    confidences: tuple[float, ...]
    """Branch confidence per evaluated branch; for a `LikelihoodSession` what each branch adds to the bound."""
    adopted: tuple[Decision, ...]
    """The winner's fill set beyond the anchor's, chosen by the pass before."""
    filled: tuple[Decision, ...]
    """Filled on the winner from this step's scores."""
    canvas: tuple[int, ...]
    """Ids after the prompt, masks included, as they now stand."""
    blocks: tuple[BlockView, ...]
    finish_reason: FinishReason | None = None

    @property
    def fills(self) -> tuple[Fill, ...]:
        """Position and token of what was filled from this step's scores."""
        return tuple(decision.fill for decision in self.filled)
