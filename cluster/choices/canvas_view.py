"""CanvasView: a choice's canvas after each step, with the branches that were tried, for clients that draw it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cluster.choices.messages import CanvasBranch, CanvasCandidates, CanvasCell, CanvasRuleStep, ChoiceCanvas
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trace import TraceRuleStep, TraceStep
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.plan import Fill
from lopa_ray.text.tokenizer import Tokenizer


class CanvasView:
    """Follows the canvas of one choice. Its positions are counted from the end of the prompt."""

    def __init__(self, index: int, session: DecodeSession, tokenizer: Tokenizer) -> None:
        """`index`: of the choice."""
        self._index, self._text = index, tokenizer.token_text
        self._prompt, self._mask = len(session.prompt), session.vocabulary.mask_token_id
        self._decided_at_step: dict[int, int] = {}

    def of_step(self, step: TraceStep, considered: Sequence[Decision], seconds: float) -> ChoiceCanvas:
        """The canvas after a step, which is the next of the choice. `considered`: decisions that it did not take;
        `seconds` since the request arrived."""
        step.update(self._decided_at_step, lambda *_: step.step)
        return ChoiceCanvas(
            choice=self._index,
            step=step.step,
            seconds=seconds,
            cells=tuple(
                CanvasCell("", 0)
                if token == self._mask
                else CanvasCell(self._text(token), self._decided_at_step.get(self._prompt + at, 0))
                for at, token in enumerate(step.canvas)
            ),
            branches=tuple(
                CanvasBranch(
                    step.branch_name(at),
                    self._tried(branch.fills),
                    branch.confidence if math.isfinite(branch.confidence) else None,
                )
                for at, branch in enumerate(step.branches)
            ),
            winner=step.winner,
            rule_steps=tuple(map(self._rule_step, step.rule_steps)),
            candidates=self._candidates([*considered, *step.decided]),
        )

    def _rule_step(self, rule_step: TraceRuleStep) -> CanvasRuleStep:
        prompt, shift = self._prompt, rule_step.shift
        return CanvasRuleStep(
            rule_step.branch,
            tuple(position - prompt for position, _ in rule_step.fills),
            tuple((None if at is None else at - prompt, to - prompt) for at, to in shift.moves),
            tuple(position - prompt for position in shift.inserted),
            tuple(position - prompt for position in shift.deletions),
        )

    def _candidates(self, decisions: Sequence[Decision]) -> tuple[CanvasCandidates, ...]:
        """Several decisions on one position: the last one counts."""
        tops = {decision.position - self._prompt: decision.top_logprobs for decision in decisions}
        return tuple(
            CanvasCandidates(
                at,
                tuple(self._text(token) for token, _ in top),
                tuple(round(math.exp(logprob), 4) for _, logprob in top),
            )
            for at, top in tops.items()
            if top
        )

    def _tried(self, fills: Sequence[Fill]) -> str:
        return " ".join(f"{self._text(token)}@{position - self._prompt}" for position, token in fills)
