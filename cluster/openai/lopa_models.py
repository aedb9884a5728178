"""What this project adds to responses under `lopa`: what they cost, traces, the canvas."""

from __future__ import annotations

from typing import Any

from cluster.openai.response_model import ResponseModel


class Cost(ResponseModel):
    """What a choice cost, or all of a request's choices together."""

    steps: int
    forwards: int
    """Branches that were evaluated."""
    rule_steps: int
    """Steps of the rule of filling: `steps`, or more with verified lookahead, where one forward may do several."""
    tokens: int
    tpf: float
    """Tokens per forward: tokens ÷ steps."""
    seconds: float
    """From arrival to the last step."""
    queued_seconds: float
    """From arrival to the first step."""
    phases_seconds: dict[str, float]
    """Per phase, over the steps that the choice took part in."""
    commit_bytes: int
    """K/V that entered the cache."""


class ChoiceCost(Cost):
    """What a choice cost."""

    seed: int
    """Sent again as the request's `seed`, with n = 1, it gives this choice."""


class Trace(ResponseModel):
    """Steps in Chrome's trace format."""

    traceEvents: list[dict[str, Any]]  # noqa: N815 - Chrome's name


class RequestCost(Cost):
    """What all choices cost together; times are the longest of them, but phases are summed."""

    trace: Trace | None = None
    """If it was asked for."""


class CanvasCell(ResponseModel):
    """A position of the canvas."""

    t: str
    """Its text; empty while it is masked."""
    s: int
    """The step that decided it; 0 while it is masked, and if the request gives it."""


class CanvasBranch(ResponseModel):
    """An evaluated branch."""

    name: str
    """anchor, or +1, +2 … for the other branches."""
    tried: str
    """What it filled beyond the anchor."""
    confidence: float | None
    """The highest wins, where branches compete; verified ones do not. Null if it has none."""


class CanvasRuleStep(ResponseModel):
    """A step of the rule of filling. A step has one; with verified lookahead it may have several."""

    branch: int | None
    """Index into `branches`: the one whose report the rule took. Null if it took none of this step's."""
    positions: list[int]
    """Indices into `cells`: what it filled."""


class ChoiceCanvas(ResponseModel):
    """A choice after one of its steps."""

    choice: int
    step: int
    seconds: float
    """Since the request arrived."""
    cells: list[CanvasCell]
    branches: list[CanvasBranch]
    winner: int
    """Index into `branches`; with verified lookahead the last accepted draft, or the anchor."""
    rule_steps: list[CanvasRuleStep]
    """In order. Branches behind the first one's are accepted drafts."""


class CanvasNote(ResponseModel):
    """The `lopa` object of a chunk that shows the canvas; such a chunk has no choices."""

    canvas: ChoiceCanvas
