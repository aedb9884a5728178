"""LikelihoodTotals: what a task's log-likelihoods took, beside its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lopa_ray.engine.likelihood import LogLikelihood


@dataclass(slots=True)
class LikelihoodTotals:
    """Sums over the requests of a task."""

    mc_num: int
    """Draws of each estimate."""
    requests: int = 0
    steps: int = 0
    """Forward rounds that the requests took part in."""
    forwards: int = 0
    """Branch evaluations."""
    seconds: float = 0.0
    """Wall-clock time of all calls, with the requests of a call in flight together."""
    truncated_prompts: int = 0
    """Contexts that lost their beginning, since they are longer than `model.max_model_len` leaves room for."""

    def add(self, parts: Sequence[LogLikelihood]) -> None:
        """Count one request, by its windows."""
        self.requests += 1
        self.steps += sum(part.steps for part in parts)
        self.forwards += sum(part.forwards for part in parts)

    def as_dict(self) -> dict[str, float | str]:
        """For the results' JSON, with a description of the likelihoods."""
        return {
            "loglikelihood": f"Monte-Carlo bound, LLaDA (arXiv 2502.09992) equation 6, {self.mc_num} draws",
            "requests": self.requests,
            "steps": self.steps,
            "forwards": self.forwards,
            "seconds": self.seconds,
            "truncated_prompts": self.truncated_prompts,
        }
