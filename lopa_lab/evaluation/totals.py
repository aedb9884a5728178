"""Totals of what a task's requests took, in addition to its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from lopa_lab.records.markdown import table
from lopa_lab.records.small_sample import small_sample_note
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.likelihood import LogLikelihood


@dataclass(slots=True)
class Totals:
    """Sums over the requests of a task."""

    requests: int = 0
    steps: int = 0
    """Forward rounds that the requests took part in."""
    forwards: int = 0
    """Branch evaluations."""
    seconds: float = 0.0
    """Wall-clock time of all calls, with the requests of a call in flight together."""
    truncated_prompts: int = 0
    """Prompts that lost their beginning, since they are longer than `model.max_model_len` leaves room for."""

    def add(self, parts: Sequence[GenerationResult | LogLikelihood]) -> None:
        """Count one request, by its parts: its one result, or the windows of a log-likelihood."""
        self.requests += 1
        self.steps += sum(part.steps for part in parts)
        self.forwards += sum(part.forwards for part in parts)


@dataclass(slots=True)
class DecodeTotals(Totals):
    """Sums over the requests of a task that generates."""

    tokens: int = 0
    """Up to and including each answer's first EOS."""

    def as_dict(self) -> dict[str, float]:
        """Sums and quotients, for the results' JSON: `tpf` is tokens ÷ steps, `tps` tokens ÷ seconds."""
        tpf = self.tokens / self.steps if self.steps else 0.0
        return {**asdict(self), "tpf": tpf, "tps": self.tokens / self.seconds if self.seconds else 0.0}


def decoding_lines(totals: Mapping[str, DecodeTotals]) -> list[str]:
    """Lines for people: what decoding took, by task, in a table like the harness's, and which scores say little."""
    if not totals:
        return []
    rows = []
    for task, sums in totals.items():
        figures = sums.as_dict()
        rows.append(
            [task, f"{figures['tpf']:.2f}", f"{figures['tps']:.1f}", str(sums.tokens), str(sums.requests)]
        )
    lines = [table(["Tasks", "TPF", "tokens/s", "tokens", "requests"], rows)]
    notes = {task: small_sample_note(sums.requests) for task, sums in totals.items()}
    return [*lines, *(f"{task}: {note}" for task, note in notes.items() if note is not None)]
