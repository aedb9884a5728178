"""S2D2's self-verification (arXiv 2603.25702): a model verifies its own drafts, one position after the other.

A call drafts the first run of masks. If the model is sure enough of it, a call verifies it, in which no row sees a
later one: drafts are accepted from the left, as in speculative sampling, and the first one that is not gets another
token. Where that is too little, the decoder's own rule fills more of what was drafted.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, count, takewhile
from operator import mul

from pydantic import Field

from lopa_ray.config.generation_settings import CONSTRAINING, GIVING, GenerationSettings
from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.branching import Scores
from lopa_ray.decoding.edits import PENALTIES
from lopa_ray.decoding.filling_session import FillingSession
from lopa_ray.decoding.planned_branch import CanvasT
from lopa_ray.protocol.keyed_random import keyed_uniform
from lopa_ray.protocol.outcome import Decision, StepOutcome
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.sampling_params import SamplingParams
from lopa_ray.protocol.scoring import ChooseTokens, Drafted
from lopa_ray.protocol.step_report import BranchReport

LEAST = 1e-30  # replaces a probability of 0 that is divided by, or whose logarithm is taken

_PLAIN = ("lookahead", "temperature", "top_p", "top_k", "min_tokens", "logit_bias", "ranking")
_UNUSED = ("num_branches", "fuse_store", "sub_block_size", "settled", "credit_alpha", "sdar_confidence")
_REFUSED = dict.fromkeys(
    (*_PLAIN, *PENALTIES, *CONSTRAINING, *GIVING),
    "a verifying call compares plain probabilities of drafts, and sees nothing after them; leave {} out",
) | dict.fromkeys(_UNUSED, "it has no use where drafts are verified; leave {} out")


class SelfVerificationSettings(GenerationSettings):
    """The settings of decoders that verify their drafts."""

    min_expected: float = Field(default=1.0, ge=0.0)
    """Drafts are verified if so many of them are expected to be accepted, at exp(-entropy ÷ ln vocabulary) each. 0:
    always."""

    @property
    def refused(self) -> Mapping[str, str]:
        own = {name: why for name, why in _REFUSED.items() if name in type(self).model_fields}
        return {**super().refused, **own}


class SelfVerifyingSession(FillingSession[CanvasT]):
    """One request, by a decoder whose session is the next base class."""

    settings: SelfVerificationSettings
    may_decide_nothing = True

    def _begin(self) -> None:
        super()._begin()
        self._drafts: list[Decision] = []  # what the coming call verifies
        self._scores: Scores = {}  # of the call that drafted
        self._verified: dict[int, Decision] = {}  # what the call that verifies decides by that

    @abstractmethod
    def _fall_back(self, scores: Scores) -> list[int]:
        """The positions to fill by the scores of masked ones, besides those of `_verified`."""

    @cached_property
    def sampling_params(self) -> SamplingParams:
        """Scores are for the choice between verifying and filling."""
        return replace(super().sampling_params, ranking="neg_entropy")

    @property
    def step_limit(self) -> int:
        """Every call that verifies decides a position."""
        return super().step_limit + self.settings.max_new_tokens

    def _plan(self, num_branches: int) -> Plan:
        plan = super()._plan(1)
        if not self._drafts:
            return plan
        segments = plan.branches[0].segments
        fills = [decision.fill for decision in (*self._edits(self._scores, None), *self._drafts)]
        # With shifted logits the row before a draft decides; else a mask in its place, on a branch of its own.
        spans = [self._drafts] if self.vocabulary.shifted else [[draft] for draft in self._drafts]
        branches = [
            Branch(
                segments=tuple((stop, stop) for stop in range(plan.start + 1, span[-1].position + 2)),
                scored=range(span[0].position, span[-1].position + 1),
                fills=tuple(fill for fill in fills if fill[0] < span[-1].position),
                scoring=ChooseTokens(memory=Drafted(tuple(draft.token for draft in span), segments)),
            )
            for span in reversed(spans)  # the longest first: it is what limits look at
        ]
        return replace(plan, branches=tuple(branches), scores_decided=True)

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        """What a call decides that verifies, or that leaves nothing to verify; else nothing, and drafts."""
        if not self._drafts:
            masked = {p: score for p, score in scores.items() if self._canvas.is_masked(p)}
            span = list(takewhile(masked.__contains__, count(min(masked, default=0))))
            self._scores = {p: score._replace(score=score.probability) for p, score in scores.items()}
            if span and self._verifies(span, masked):
                self._drafts = [self._scores[p].decision for p in span]
                return []
        decided = [self._verified.get(d.position, d) for d in super().choose(self._scores, constraint_state)]
        self._drafts, self._scores, self._verified = [], {}, {}
        return decided

    def _verifies(self, span: Sequence[int], scores: Scores) -> bool:
        """Whether a call verifies the drafts of the first run of masks, by the scores of all."""
        sure = [math.exp(scores[p].score / math.log(self.vocabulary.size)) for p in span]
        return bool(sum(accumulate(sure, mul)) >= self.settings.min_expected)

    def _unmasking_rule(self, scores: Scores) -> list[int]:
        left = {p: score for p, score in scores.items() if p not in self._verified}
        return [*self._verified, *self._fall_back(left)]

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        if not self._drafts:
            return super()._advance(plan, reports)
        verified = self._verify([row for report in reversed(reports) for row in report.memory.tolist()])
        self._verified = {decision.position: decision for decision in verified}
        confidences = tuple(float(report.probabilities.mean()) for report in reports)
        return replace(super()._advance(plan, reports[:1]), confidences=confidences)

    def _verify(self, reports: Sequence[Sequence[float]]) -> list[Decision]:
        """The accepted drafts, and the token in place of the first that is not, by what is reported of each."""
        decided: list[Decision] = []
        for draft, (confirmed, token, probability) in zip(self._drafts, reports, strict=True):
            if not self._accepts(draft, confirmed):
                logprob, tops = math.log(max(probability, LEAST)), draft.top_logprobs
                return [*decided, Decision(draft.position, int(token), probability, logprob, tops)]
            decided.append(draft)
        return decided

    def _accepts(self, draft: Decision, confirmed: float) -> bool:
        uniform = keyed_uniform(self.settings.seed, self.rule_steps + 1, draft.position)
        return uniform < confirmed / max(draft.probability, LEAST)
