"""S2D2 (arXiv 2603.25702): block diffusion that verifies its drafts by itself, one position after the other.

A call drafts the first run of masks of the block. If the model is sure enough of it, a call verifies it with one branch
per position, in which no row sees a later one: drafts are accepted from the left, as in speculative sampling, and the
first one that is not gets another token. If not, the call fills positions as block diffusion does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, takewhile
from operator import mul
from typing import Literal

from pydantic import Field

from lopa_ray.config.generation_settings import CONSTRAINING, GIVING, Conflict
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import PositionScore, Scores
from lopa_ray.decoding.decoder import Decoder
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSession, BlockDiffusionSettings
from lopa_ray.decoding.edits import PENALTIES
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.protocol.keyed_random import keyed_uniform
from lopa_ray.protocol.outcome import Decision, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import ChooseTokens, Drafted
from lopa_ray.protocol.step_report import BranchReport

LEAST = 1e-30  # replaces a probability of 0 that is divided by, or whose logarithm is taken

_UNVERIFIED = (
    "a verifying call compares plain probabilities of drafts, and sees nothing after them; leave {} out"
)
_REFUSED = (
    *("lookahead", "temperature", "top_p", "top_k", "min_tokens", "logit_bias", "ranking"),
    *(*PENALTIES, *CONSTRAINING, *GIVING),
)
_WITHOUT_USE = ("num_branches", "fuse_store", "sub_block_size", "settled", "credit_alpha", "sdar_confidence")


class S2D2Settings(BlockDiffusionSettings):
    """S2D2 (arXiv 2603.25702): block diffusion with drafts that the model verifies by itself. The published decoder
    verifies by drawn numbers also where tokens are not drawn: answers depend on `seed`."""

    decoder: Literal["s2d2"] = "s2d2"  # type: ignore[assignment]  # another decoder than its base

    min_expected: float = Field(default=1.0, ge=0.0)
    """Drafts are verified if so many of them are expected to be accepted, at exp(-entropy ÷ ln vocabulary) each. 0:
    always."""

    causal_cache: bool = True
    """Decided tokens see no later ones, in cached K/V and before a block's first mask, as where drafts are verified."""

    @property
    def refused(self) -> Mapping[str, str]:
        return {**super().refused, **dict.fromkeys(_REFUSED, _UNVERIFIED)}

    def conflicts(self) -> Iterator[Conflict]:
        if self.remasking == "entropy_bounded":
            yield "remasking", " entropy_bounded with decoder s2d2, which counts what it fills; use another"
        yield from super().conflicts()
        for name in filter(self.is_changed, _WITHOUT_USE):
            yield name, f" {getattr(self, name)!r} has no use with decoder s2d2; leave {name} out"


class S2D2Session(BlockDiffusionSession):
    settings: S2D2Settings

    may_decide_nothing = True

    def _begin(self) -> None:
        super()._begin()
        self._drafts: Scores = {}  # what the coming call verifies
        self._scores: Scores = {}  # of the call that drafted

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """Scores are for the choice between verifying and filling."""
        return replace(super().sampling_params, ranking="neg_entropy")

    @property
    def step_limit(self) -> int:
        """Every position may need a call that drafts and one that verifies; others cache a block."""
        return 3 * self.settings.max_new_tokens + 1

    def _window(self) -> Window:
        window = super()._window()
        if not self.settings.causal_cache:
            return window
        if not window.scored:
            return replace(window, causal_stop=window.input_span.stop)
        first = self._canvas.masked_positions(self._block)[0]
        causal = tuple((stop, stop) for stop in range(window.input_span.start + 1, first + 1))
        return replace(window, segments=(*causal, *window.segments))

    def _plan(self, num_branches: int) -> Plan:
        plan = super()._plan(1)
        if not self._drafts:
            return plan
        segments = plan.branches[0].segments
        fills = {p: score.report.tokens.item(score.row) for p, score in self._drafts.items()}
        return replace(
            plan,
            branches=tuple(
                Branch(
                    segments=tuple((stop, stop) for stop in range(plan.start + 1, position + 2)),
                    scored=range(position, position + 1),
                    fills=tuple(fill for fill in fills.items() if fill[0] < position),
                    scoring=ChooseTokens(memory=Drafted(token, segments)),
                )
                for position, token in reversed(fills.items())  # the longest first: it is what limits look at
            ),
        )

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        """What a call fills that is not to be verified; else nothing, and drafts."""
        if not scores:
            return []
        first = min(scores)
        span = list(takewhile(scores.__contains__, range(first, self._block.stop)))
        if self._verifies(span, scores):
            self._drafts, self._scores = {p: scores[p] for p in span}, scores
            return []
        return super().choose(_by_probability(scores), constraint_state)

    def _verifies(self, span: Sequence[int], scores: Scores) -> bool:
        sure = [math.exp(scores[p].score / math.log(self.vocabulary.size)) for p in span]
        expected: float = sum(accumulate(sure, mul))
        return expected >= self.settings.min_expected

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        if not self._drafts:
            return super()._advance(plan, reports)
        filled = self._verified([report.memory[0].tolist() for report in reversed(reports)])
        left = {p: score for p, score in self._scores.items() if p not in {d.position for d in filled}}
        count = min(self._fill_count(self._calls), len(self._scores)) - len(filled)
        if count > 0:
            filled += [left[p].decision for p in self._select(_by_probability(left), count)]
        self._canvas, self._drafts, self._scores = self._branches[0].canvas, {}, {}
        self._canvas.set_tokens(decision.fill for decision in filled)
        self._end(plan, 0)
        return StepOutcome(
            step=plan.step,
            winner=0,
            confidences=tuple(float(report.probabilities.mean()) for report in reports),
            rule_steps=(RuleStep(0, tuple(filled)),),
            canvas=tuple(self.generated),
            blocks=self.block_views(),
            commit=self._commit,
        )

    def _verified(self, reports: Sequence[Sequence[float]]) -> list[Decision]:
        """The accepted drafts, and the token in place of the first that is not, by what is reported of each."""
        filled = []
        for (position, draft), (confirmed, other, probability) in zip(
            self._drafts.items(), reports, strict=True
        ):
            if self._uniform(position) >= self._ratio(confirmed, draft):
                logprob = math.log(max(probability, LEAST))
                filled.append(
                    Decision(position, int(other), probability, logprob, draft.decision.top_logprobs)
                )
                break
            filled.append(draft.decision)
        return filled

    def _uniform(self, position: int) -> float:
        return keyed_uniform(self.settings.seed, self.rule_steps + 1, position)

    def _ratio(self, probability: float, draft: PositionScore) -> float:
        return probability / max(draft.probability, LEAST)

    def _end_step(self, branch: Branch) -> None:
        if not self._drafts:
            super()._end_step(branch)


def _by_probability(scores: Scores) -> Scores:
    return {p: score._replace(score=score.probability) for p, score in scores.items()}


S2D2 = Decoder(
    S2D2Session, S2D2Settings(max_new_tokens=20, block_size=4, min_expected=0.5, stop_at_eos=False)
)
