"""RuleSession: a request whose canvas a rule fills, one denoising step after the other."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Scores, filter_by_constraint
from lopa_ray.decoding.history import History
from lopa_ray.decoding.planned_branch import CanvasT
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import Decision, Shift
from lopa_ray.protocol.plan import Fill


class RuleSession(DecodeSession, Generic[CanvasT]):
    """A canvas, and an unmasking rule. A denoising step is `choose`, then `Canvas.set_tokens`."""

    def _begin(self) -> None:
        self._history = History(self.settings)
        self.rule_steps = 0  # denoising steps so far. Draws and schedules follow them

    # What a decoder provides

    _canvas: CanvasT  # the canvas of the last winner, which `_begin` makes

    @abstractmethod
    def _unmasking_rule(self, scores: Scores) -> list[int]:
        """The positions to fill, by the scores of the masked positions, of which there is at least one."""

    @property
    def _scores_decided(self) -> bool:
        """Whether steps score decided tokens too, and may edit them. See `Plan.scores_decided`."""
        return False

    _shift = Shift()  # what the last `choose` has moved on the canvas

    def _edits(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        """The decided tokens that a step replaces, after its fills."""
        return []

    def _answer(self, canvas: CanvasT) -> list[int]:
        """The answer on a canvas, masks included, as far as it has begun."""
        return canvas.generated

    # What decoders share

    def _lay_draft(self, canvas: CanvasT, span: range) -> None:
        """Put the draft's tokens at the masks of a span whose steps begin. A constraint leaves those out that no
        matching answer has next to what is decided."""
        if not self.draft:
            return
        first, state = len(self.prompt), self._constraint_state(self._answer(canvas))
        for position in canvas.masked_positions(span):
            token = self.draft.get(position - first)
            if token is None or (state is not None and not state.allows(position, token)):
                continue
            if state is not None:
                state.fill(position, token)
            canvas.set_tokens([(position, token)])

    @property
    def generated(self) -> list[int]:
        return self._answer(self._canvas)

    @property
    def draw_key(self) -> int:
        """The key of the coming step's draws: the denoising step, or 0 where tokens are not drawn."""
        return self.rule_steps + 1 if self.settings.temperature > 0 else 0

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        """The decisions of a denoising step: what the rule chooses of the masked positions, what the constraint leaves
        no choice about, then what has settled, what an end in a hole implies, and edits."""

        def allowed(positions: Iterable[int]) -> list[Decision]:
            return filter_by_constraint(constraint_state, [scores[p].decision for p in positions], scores)

        masked = scores
        if self._scores_decided:
            masked = {p: score for p, score in scores.items() if self._canvas.is_masked(p)}
        chosen = set(self._unmasking_rule(masked)) if masked else set()
        if constraint_state is not None:
            chosen.update(filter(constraint_state.is_forced, masked))
        filled = allowed(sorted(chosen))
        positions = {decision.position for decision in filled}
        filled += allowed(self._history.settled((p for p in masked if p not in positions), scores))
        self._history = self._history.after(masked, filled=bool(filled))
        filled += self._ended(filled, constraint_state)
        return filled + self._edits(scores, constraint_state)

    def _ended(self, filled: Sequence[Decision], constraint_state: ConstraintState | None) -> list[Decision]:
        """EOS at all masked positions after an end in a hole, once `filled` are set."""
        ends = self.with_ends([decision.fill for decision in filled])[len(filled) :]
        if constraint_state is not None:
            for position, token in ends:
                constraint_state.fill(position, token)
        return [Decision(position, token, 1.0, logprob=0.0, top_logprobs=()) for position, token in ends]

    def with_ends(self, fills: Sequence[Fill]) -> tuple[Fill, ...]:
        """`fills`, and EOS at all masked positions after an end in a hole: these are not part of the answer."""
        fills = tuple(fills)
        if not (self.given.holes and self.settings.stop_at_eos):
            return fills
        first, mask, eos = len(self.prompt), self.vocabulary.mask_token_id, self.vocabulary.eos_token_id
        # The planned branch may have grown, after all that is given.
        answer = self.generated[: self.given.end]
        for position, token in fills:
            if position - first < len(answer):
                answer[position - first] = token
        ended = self.given.ended_positions(answer, self.end_token_ids)
        return (*fills, *((first + at, eos) for at in ended if answer[at] == mask))
