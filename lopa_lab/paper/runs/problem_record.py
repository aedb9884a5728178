"""ProblemRecord: what decoding one problem gave and took. A line of `records.jsonl`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ProblemRecord(BaseModel):
    """One problem's answer and figures. Times are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problem_id: str
    text: str
    """Decoded up to the first EOS, stop strings and what follows them included."""
    finish_reason: str
    """stop, or length where no EOS came."""
    prompt_tokens: int
    truncated_prompt: bool
    """The prompt lost its beginning, since it is longer than `model.max_model_len` leaves room for."""
    tokens: int
    """Up to and including the first EOS."""
    canvas_tokens: int
    """All that were decided, behind the first EOS too: what the published code counts."""
    steps: int
    """Forward rounds."""
    forwards: int
    """Branch evaluations, over all steps."""
    seconds: float | None
    """From submission to the last step, alone in flight; None: other problems were in flight as well."""
    first_step_seconds: float | None
    """From submission to the end of the first step; None as for `seconds`."""
    fills: tuple[int, ...]
    """Positions that each step decided."""
    scores: dict[str, float] | None = None
    """By name, from 0 to 1; None: not graded (yet)."""

    @property
    def tpf(self) -> float:
        """`tokens` ÷ `steps`."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tps(self) -> float | None:
        """`tokens` ÷ `seconds`; None without a time."""
        return self.tokens / self.seconds if self.seconds else None
