"""DecodeTotals: what decoding a task's requests took, beside its scores."""

from __future__ import annotations

from dataclasses import dataclass

from lopa_ray.decoding.result import GenerationResult


@dataclass(slots=True)
class DecodeTotals:
    """Sums over the requests of a task."""

    requests: int = 0
    tokens: int = 0
    """Up to and including each answer's first EOS."""
    steps: int = 0
    """Forward rounds that the requests took part in."""
    forwards: int = 0
    """Branch evaluations."""
    seconds: float = 0.0
    """Wall-clock time of all calls, with the requests of a call in flight together."""
    truncated_prompts: int = 0
    """Prompts that lost their beginning, since they are longer than `model.max_model_len` leaves room for."""

    def add(self, result: GenerationResult) -> None:
        """Count one request."""
        self.requests += 1
        self.tokens += result.tokens
        self.steps += result.steps
        self.forwards += result.forwards

    def as_dict(self) -> dict[str, float]:
        """Sums and quotients, for the results' JSON: `tpf` is tokens ÷ steps, `tps` tokens ÷ seconds."""
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "steps": self.steps,
            "forwards": self.forwards,
            "seconds": self.seconds,
            "truncated_prompts": self.truncated_prompts,
            "tpf": self.tokens / self.steps if self.steps else 0.0,
            "tps": self.tokens / self.seconds if self.seconds else 0.0,
        }
