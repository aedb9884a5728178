"""Self-speculation of Nemotron-Labs-Diffusion (arXiv 2607.05722, `linear_spec_generate`): a model verifies its drafts.

Calls without a mask draft a block after the last token, through the model's draft adapter if it has one. Then one
causal call, without the adapter, decides each position by all before it. Tokens are taken up to and including the first
that differs from its draft, so autoregressive decoding gives the same tokens: drafts only change the number of calls.
The verifying call stores K/V of the whole block; later calls read the K/V of the tokens that were taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from lopa_ray.config.generation_settings import CONSTRAINING, GIVING, Conflict, GenerationSettings
from lopa_ray.config.prompt_attention import PromptAttention
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branch_budget import BranchSettings
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.canvas import Canvas
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.decoders.blockwise import BlockwiseSession
from lopa_ray.decoding.decoders.joint_speculation import JointSpeculationSession, taken_views
from lopa_ray.decoding.edits import PENALTIES
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.unmasking_rules import select_above_threshold
from lopa_ray.protocol.outcome import BlockView, Decision
from lopa_ray.protocol.plan import Branch, Plan


class SelfSpeculationSettings(BranchSettings):
    """Self-speculation (Nemotron-Labs-Diffusion, arXiv 2607.05722): drafts of a block without a mask, verified by one
    causal pass. Autoregressive decoding gives the same tokens."""

    recommended_by_checkpoints: ClassVar[tuple[str, ...]] = ("temperature", "top_p", "top_k")

    decoder: Literal["self_speculation"] = "self_speculation"

    block_size: int = Field(default=16, ge=1)
    """The last token and the masks after it. A verifying pass takes at most so many tokens, or one less with drafting
    joint, where the first mask is at the position that the causal pass decides. With 1 nothing is drafted, nor with 2
    in a joint pass. A model with a draft head needs no mask, and a guess has one token less."""

    confidence_threshold: float = Field(default=0.0, ge=0.0, le=1.0)
    """A drafting pass drafts masked positions with at least this probability, and the best-ranked one in any case.
    0: all in one pass."""

    drafting: Literal["joint", "separate"] = "joint"
    """joint: one call verifies `num_branches` guesses of what follows, and drafts after each of them. separate: a call
    drafts a block, and another call verifies it, as published. The tokens are the same."""

    @property
    def prompt_attention(self) -> PromptAttention:
        return PromptAttention("causal")

    @property
    def refused(self) -> Mapping[str, str]:
        """A token is verified after drafts that may be wrong, with rules that depend on tokens alone."""
        return {
            **super().refused,
            **dict.fromkeys(
                GIVING,
                "one causal pass decides each token by what is before it, and sees nothing that is given after "
                "it; leave {} out, or use decoder nemotron",
            ),
            **dict.fromkeys(
                (*CONSTRAINING, *PENALTIES),
                "one pass verifies all drafts of a block, and what this means for one of them depends on those in "
                "front of it; leave {} out, or use decoder nemotron, with block_size 1 for the same tokens without it",
            ),
        }

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        joint = self.drafting == "joint"
        if joint and self.confidence_threshold > 0:
            why = "with drafting joint, which drafts all in one pass; leave it out, or use drafting separate"
            yield "confidence_threshold", f" {self.confidence_threshold} {why}"
        if not joint and self.num_branches != 1:
            why = "with drafting separate, which has one branch; leave it out, or use drafting joint"
            yield "num_branches", f" {self.num_branches!r} {why}"


class SelfSpeculationSession(BlockwiseSession):
    """One request under self-speculation. Its block has the positions that the next verifying call may decide."""

    settings: SelfSpeculationSettings

    @classmethod
    def variant(cls, settings: GenerationSettings) -> type[DecodeSession]:
        assert isinstance(settings, SelfSpeculationSettings)
        return JointSpeculationSession if settings.drafting == "joint" else cls

    def _begin(self) -> None:
        super()._begin()
        self._cached_end = 0  # of the K/V that later calls read: all before the last token
        self._drafts: dict[int, int] = {}  # position → drafted token, of the current block
        # The first call verifies nothing: it stores the prompt, and decides the token after it.
        self._block = self._block[:1]

    def _block_at(self, position: int) -> range:
        return range(position, min(position + self.settings.block_size, self.max_len))

    @property
    def draw_key(self) -> int:
        """The same for all calls, so that drawn tokens depend only on what is before them."""
        return 1 if self.settings.temperature > 0 else 0

    def _answer(self, canvas: Canvas) -> list[int]:
        """The tokens that were taken. Masks and drafts are not part of the answer."""
        return canvas.ids[canvas.prompt_len : self._block.start]

    @property
    def exhausted(self) -> bool:
        return not self._block

    @property
    def step_limit(self) -> int:
        """A verifying call decides a token, and each call before it drafts one of a block."""
        return self.settings.max_new_tokens * self.settings.block_size + 1

    @property
    def _drafts_more(self) -> bool:
        """Whether the coming call drafts: a token of the block, but for the last, has no draft."""
        return len(self._drafts) < len(self._block) - 1

    def _window(self) -> Window:
        start, block = self._cached_end, self._block
        cached, last = (range(start),) if start else (), block.stop - 1
        if self._drafts_more:
            span = range(start, last)
            return Window(span, ((last, last),), range(block.start, last), cached, draft_adapter=True)
        span = range(start, last)  # The last token has no row: the row before it decides.
        return Window(span, ((last, last),), block, cached, (span,), True, last)

    def _plan(self, num_branches: int) -> Plan:
        """Drafts are in the input, and a verifying call scores them as if they were masks."""
        plan = super()._plan(num_branches)
        canvas = tuple(self._drafts.get(p, token) for p, token in enumerate(plan.canvas, plan.start))
        return replace(plan, canvas=canvas, scores_decided=not self._drafts_more)

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        """Nothing by a call that drafts; else all tokens up to the first that differs from its draft, or ends the
        answer."""
        if self._drafts_more:
            drafted = (scores[p].decision.fill for p in self._unmasking_rule(scores))
            self._drafts = {**self._drafts, **dict(drafted)}
            return []
        taken: list[Decision] = []
        for position in self._block:
            decision = scores[position].decision
            taken.append(decision)
            if self._drafts.get(position) != decision.token or decision.token in self.end_token_ids:
                break
        return taken

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        return select_above_threshold(scores, self.settings.confidence_threshold)

    def _end_step(self, branch: Branch) -> None:
        """Behind a verifying call the next block begins; its first input is the last token that was taken."""
        if branch.to_stage:
            masked = self._canvas.masked_positions(self._block)
            end = masked[0] if masked else self._block.stop
            self._cached_end, self._drafts = end - 1, {}
            has_ended = self._canvas.ids[end - 1] in self.end_token_ids
            self._block = range(end, end) if has_ended else self._block_at(end)

    def block_views(self) -> tuple[BlockView, ...]:
        return taken_views(len(self.prompt), self._block.start)


SELF_SPECULATION = Decoder(
    SelfSpeculationSession,
    SelfSpeculationSettings(max_new_tokens=20, block_size=6, num_branches=4, stop_at_eos=False),
)
