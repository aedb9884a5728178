"""DMax (arXiv 2604.08302): block diffusion that chooses every token of its block anew in each call, from soft inputs.

The input at a decided position lies between the embeddings of its token and of the mask token, the nearer to the token
the more probable that is (`SoftInputs`). A block without masks is final when a call was sure of all of it or
changed nothing, or after as many calls as it has positions. Only then its tokens are fed as they are, and K/V stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.decoder import SHORT, Decoder
from lopa_ray.decoding.decoders.edited_blocks import EditedBlocksSession, EditedBlocksSettings
from lopa_ray.decoding.unmasking_rules import select_leading
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.plan import Fill, Plan
from lopa_ray.protocol.plan_inputs import SoftInputs

SURE = 0.9  # a call ends the block if no likeliest token is less probable; the published code fixes it


class DMaxSettings(EditedBlocksSettings):
    """DMax (arXiv 2604.08302): blocks one after the other, of which each call chooses all tokens anew, from soft
    inputs. Its scripts take threshold 0.5 for mathematics and 0.65 for code."""

    decoder: Literal["dmax"] = "dmax"

    confidence_threshold: float = Field(default=0.5, ge=0.0, le=1.0)
    """A call fills the masked positions from the left up to the first whose probability is below this, and the leftmost
    one in any case."""


class DMaxSession(EditedBlocksSession):
    settings: DMaxSettings

    def _begin_block_at(self, position: int) -> None:
        super()._begin_block_at(position)
        self._probabilities: dict[Fill, float] = {}
        """The probabilities of tokens that calls on the current block have chosen, in the last call that did."""

    @property
    def step_limit(self) -> int:
        """A block takes no more calls than it has positions, of which each fills one at least."""
        size = self.settings.block_size
        return (self.settings.max_new_tokens // size + 2) * size

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        return select_leading(scores, self.settings.confidence_threshold)

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        decisions = super().choose(scores, constraint_state)
        is_sure = all(score.probability >= SURE for score in scores.values())
        is_last = self._calls + 1 >= self.settings.block_size
        self._settles = is_sure or is_last or not decisions
        self._probabilities = self._probabilities | {
            (position, score.report.tokens.item(score.row)): score.probability
            for position, score in scores.items()
        }
        return decisions

    def _plan(self, num_branches: int) -> Plan:
        plan, weights = super()._plan(num_branches), self._probabilities
        if not weights:
            return plan
        # No call has chosen what is masked, or what the prompt has of the block.
        return replace(
            plan,
            inputs=SoftInputs(
                tuple(
                    weights.get((position, token), 1.0)
                    for position, token in enumerate(plan.canvas, plan.start)
                )
            ),
            branches=tuple(
                replace(branch, fill_weights=tuple(weights[fill] for fill in branch.fills))
                for branch in plan.branches
            ),
        )


DMAX = Decoder(DMaxSession, DMaxSettings(**SHORT, block_size=8, num_branches=3))
