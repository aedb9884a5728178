"""S2D2 as published: its policies besides ours, on each of its decoders, and its numbers in place of draws."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from operator import mul
from typing import Any

from lopa_ray.constraints.constraint import ConstraintState
from lopa_ray.decoding.block_canvas import BlockCanvas
from lopa_ray.decoding.branching import PositionScore, Scores
from lopa_ray.decoding.canvas import Canvas
from lopa_ray.decoding.decoders.s2d2 import S2D2D2FSession, S2D2EditingSession, S2D2Session
from lopa_ray.decoding.decoders.self_verification import SelfVerifyingSession
from lopa_ray.decoding.planned_branch import CanvasT, Window
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.unmasking_rules import RuleBlock
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.plan import Fill, Plan


def published_s2d2(session: DecodeSession, row: dict[str, Any]) -> DecodeSession:
    """The session in place of one that has not begun, with the row's policy and draws."""
    sessions = PublishedBlockDiffusion, PublishedEditing, PublishedD2F
    published = next(one for one in sessions if issubclass(one, type(session)))
    of_row = type(published.__name__, (published,), {"recorded": row})
    made: DecodeSession = of_row(session.prompt, session.settings, session.vocabulary)
    return made


class PublishedVerification(SelfVerifyingSession[CanvasT]):
    """What the decoders share."""

    recorded: dict[str, Any]
    """The row."""

    def _begin(self) -> None:
        super()._begin()
        self._is_on = False
        self._verifications = iter([step for step in self.recorded["trace"] if step.get("v")])

    def _get(self, name: str, default: Any) -> Any:
        value = self.recorded["settings"].get(name)
        return default if value is None else value

    def choose(self, scores: Scores, constraint_state: ConstraintState | None) -> list[Decision]:
        if scores and not any(map(self._canvas.is_masked, scores)):
            self._is_on = False
        return super().choose(scores, constraint_state)

    def _verifies(self, span: Sequence[int], scores: Scores) -> bool:
        masks, threshold = len(scores), self._get("threshold", self._get("confidence_threshold", 0.0))
        sure = sum(s.probability > threshold for s in scores.values())
        cost = self._get("score_penalty_coef", 2.0)
        if self._get("do_verify_score_type", "difference_dynamic") == "difference_dynamic":
            cost *= sure
        score = sum(accumulate((math.exp(-self._entropy(scores[p])) for p in span), mul)) - cost
        match self._get("do_verify_policy", "mask_span_length"):
            case "score_threshold" if self._get("do_verify_score_type", "") == "difference_static":
                return super()._verifies(span, scores)
            case "score_threshold":
                return bool(score >= self._get("do_verify_score_threshold", -1.0))
            case "score_hysteresis":
                off = self._get("hysteresis_threshold_off", -1.0)
                on = self._get("hysteresis_threshold_on", 0.0)
                self._is_on = score >= off if self._is_on else score > on
                return self._is_on
        least = self._get("min_ssd_span_length", 1)
        legacy = self._get("legacy_ssd_span_strategy", False)
        return bool(len(span) >= least or (legacy and sure < min(least, masks)))

    def _entropy(self, score: PositionScore) -> float:
        return -score.score / math.log(self.vocabulary.size)

    def _verify(self, reports: Sequence[Sequence[float]]) -> list[Decision]:
        self._step = next(self._verifications)
        decided = super()._verify(reports)
        if self._step.get("rs") is not None and self._get("rng", "") == "seeded":
            decided[-1] = replace(decided[-1], token=self._step["rs"])
        if self._is_rejected(decided) and not self._get("allow_resample", True):
            decided[-1] = self._drafts[len(decided) - 1]
        return decided

    def _is_rejected(self, decided: Sequence[Decision]) -> bool:
        """Whether the last decision is in place of a draft that was not accepted."""
        return bool(len(decided) > self._step["na"])

    def _accepts(self, draft: Decision, confirmed: float) -> bool:
        uniform: float = self._step["u"][draft.position - self._drafts[0].position]
        return uniform < self._ratio(draft, confirmed)

    def _ratio(self, draft: Decision, confirmed: float) -> float:
        ratio: float = (confirmed / draft.probability) ** self._get("ssd_ratio_tempering_factor", 1.0)
        return min(1.0, ratio)


class PublishedEditing(PublishedVerification[Canvas], S2D2EditingSession):
    """LLaDA2.1's decoder."""


class PublishedD2F(PublishedVerification[BlockCanvas], S2D2D2FSession):
    """D2F's decoder."""

    def _plan(self, num_branches: int) -> Plan:
        """Where several positions are verified at a time, they are masked, and see each other."""
        plan, size = super()._plan(num_branches), self._get("target_block_size", 1)
        if not self._drafts or size == 1:
            return plan
        branches = []
        for branch in plan.branches:
            offset = branch.scored.start - plan.start
            first = branch.scored.start - offset % size
            fills = [fill for fill in branch.fills if fill[0] < first]
            fills += [(p, self.vocabulary.mask_token_id) for p in range(first, first + size)]
            segments = tuple((stop, stop) for stop in range(plan.start + size, first + size + 1, size))
            branches.append(replace(branch, segments=segments, fills=tuple(fills)))
        return replace(plan, branches=tuple(branches))

    def rule_blocks(self, beyond: Collection[Fill] = (), calls: int = 0) -> list[RuleBlock]:
        least = max(1, self._get("min_tokens_per_step", 1))
        return [block._replace(least=least * block.least) for block in super().rule_blocks(beyond, calls)]

    def _fall_back(self, scores: Scores) -> list[int]:
        """By entropies, if the row says so; see `s2d2_d2f_settings`."""
        if self._get("neg_entropy", False):
            sure = {p: math.exp(score.report.scores.item(score.row)) for p, score in scores.items()}
            scores = {p: s._replace(probability=sure[p], score=sure[p]) for p, s in scores.items()}
        return super()._fall_back(scores)

    def _verify(self, reports: Sequence[Sequence[float]]) -> list[Decision]:
        decided = super()._verify(reports)
        rest = list(zip(self._drafts, reports, strict=True))[len(decided) :]
        if self._is_rejected(decided):
            least = self._get("verify_confidence_threshold", 0.0)
            if not self._get("allow_resample", True) or reports[len(decided) - 1][0] < least:
                decided.pop()
        least = self._get("ssd_partial_ar_span", 0)
        if least and self._step is not self.recorded["trace"][0]:
            for accepted, run in groupby(rest, lambda of: self._accepts(of[0], of[1][0])):
                further = [draft for draft, _ in run]
                decided += further if accepted and len(further) >= least else []
        return decided

    def _accepts(self, draft: Decision, confirmed: float) -> bool:
        least = self._get("draft_confidence_threshold", self._get("skip_threshold", 0.0))
        is_sure = draft.probability > least or not self._get("ssd_threshold_draft_confidence", False)
        return is_sure and super()._accepts(draft, confirmed)


class PublishedBlockDiffusion(PublishedVerification[Canvas], S2D2Session):
    """SDAR's decoder."""

    def _begin(self) -> None:
        super()._begin()
        self._arms: dict[tuple[int, ...], list[list[float]]] = {}
        self._arm: tuple[list[float], float] | None = None  # the rewards that a step adds to, and its factor
        self._choices = 0
        self._first_mask = 0  # of the block in the last call that drafted

    def _window(self) -> Window:
        window = super()._window()
        causal_cache, causal_drafts = self._get("cache_ver", False), self._get("draft_ver", False)
        if causal_cache == causal_drafts:
            return window
        if window.scored and causal_drafts:
            self._first_mask = self._canvas.masked_positions(self._block)[0]
        if not window.scored and causal_cache:
            return replace(window, causal_stop=window.input_span.stop)
        if not causal_drafts:
            return window
        # Without causal K/V the storing call keeps the rows that were causal in the last drafting call.
        start = window.input_span.start
        causal = tuple((stop, stop) for stop in range(start + 1, self._first_mask + 1))
        return replace(window, segments=(*causal, *window.segments))

    def _verifies(self, span: Sequence[int], scores: Scores) -> bool:
        is_bandit = self._get("do_verify_policy", "") == "contextual_bandit_ucb"
        return self._pulls(span, scores) if is_bandit else super()._verifies(span, scores)

    def _pulls(self, span: Sequence[int], scores: Scores) -> bool:
        """A bandit's choice, by what it gained before with spans, progress and entropies like these."""
        size = self.settings.block_size
        of = span if self._get("ucb_entropy_source", "span") == "span" else list(scores)
        entropy = sum(self._entropy(scores[p]) for p in of) / len(of)
        filled = len(self._open_positions) - len(scores)
        bucket = tuple(
            min(int(share * bins), bins - 1)
            for share, bins in (
                ((len(span) - 1) / max(1, size - 1), self._get("ucb_span_length_bins", 2)),
                (filled / size, self._get("ucb_block_progress_bins", 2)),
                (entropy, self._get("ucb_entropy_bins", 2)),
            )
        )
        self._choices += 1
        arms = self._arms.setdefault(bucket, [[], []])
        beta = self._get("ucb_beta", 1.0)
        skip, verify = (
            sum(rewards) / len(rewards) + beta * math.sqrt(math.log(self._choices) / len(rewards))
            if rewards
            else math.inf
            for rewards in arms
        )
        chosen = verify >= skip
        self._arm = arms[chosen], 0.5 if chosen else 1.0
        return chosen

    def _end(self, plan: Plan, winner: int) -> None:
        before = plan.branches[winner]
        super()._end(plan, winner)
        if self._arm is not None and not self._drafts and before.scored:
            rewards, factor = self._arm
            ids = dict(enumerate(plan.canvas, plan.start))
            mask = self.vocabulary.mask_token_id
            rewards.append(factor * sum(t == mask != self._canvas.ids[p] for p, t in ids.items()))
            self._arm = None

    def _verify(self, reports: Sequence[Sequence[float]]) -> list[Decision]:
        decided, least = super()._verify(reports), self._get("ssd_ratio_threshold", -1.0)
        drafts = list(zip(self._drafts, reports, strict=True))[len(decided) :]
        return decided + [draft for draft, report in drafts if 0 <= least <= self._ratio(draft, report[0])]
