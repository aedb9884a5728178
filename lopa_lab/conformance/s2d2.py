"""S2D2's recorded decodes on SDAR: their settings, the published policies and draws, and the comparison of calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, UnsupportedCaseError, token_ids
from lopa_lab.conformance.readers import RecordedSettings
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.branching import PositionScore, Scores
from lopa_ray.decoding.decoders.s2d2 import S2D2Session, S2D2Settings
from lopa_ray.decoding.planned_branch import Window
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.plan import Branch, Plan
from lopa_ray.protocol.scoring import ChooseTokens, Drafted

_ESTIMATOR = "soft_entropy_negexp"  # of acceptance, by entropy
_OF_POLICIES = (
    *("do_verify_policy", "do_verify_score_threshold", "do_verify_score_type", "score_penalty_coef"),
    *("min_ssd_span_length", "legacy_ssd_span_strategy", "hysteresis_threshold_on"),
    *("hysteresis_threshold_off", "ucb_beta", "ucb_entropy_source", "ucb_span_length_bins"),
    *("ucb_block_progress_bins", "ucb_entropy_bins"),
)
_OF_VERIFICATION = (
    *("rng", "u", "seed", "ssd_ratio_threshold", "ssd_threshold_all_spans", "allow_resample"),
    *("ssd_ratio_tempering_factor", "cache_ver", "draft_ver", "top_k", "top_p"),
)


def s2d2_settings(recorded: RowSettings) -> RecordedSettings:
    """Rows of S2D2 on SDAR. Raises as `recorded_settings`."""
    pop, row = recorded.pop, recorded.row["settings"]
    block, max_new_tokens = recorded.pop_whole_blocks()
    if pop("temperature", float, default=1.0) not in (0.0, 1.0):
        raise UnsupportedCaseError("a temperature: drafts are verified by plain probabilities here")
    by_score = row.get("do_verify_policy", "").startswith("score")
    estimator = pop("token_acceptance_estimator", str, default="hard_margin_threshold")
    if by_score and estimator != _ESTIMATOR:
        raise UnsupportedCaseError(f"estimator {estimator}: here acceptance is estimated by entropy")
    if row.get("ssd_threshold_all_spans") and row.get("ssd_ratio_threshold", -1) >= 0:
        raise UnsupportedCaseError("ssd_threshold_all_spans: here one run of masks is verified")
    values: dict[str, Any] = {
        "block_size": block,
        "max_new_tokens": max_new_tokens,
        "denoising_steps": pop("denoising_steps", int),
        "confidence_threshold": recorded.pop_threshold("confidence_threshold"),
        "remasking": pop("remasking_strategy", str, default="low_confidence_dynamic"),
        "causal_cache": bool(row.get("cache_ver") and row.get("draft_ver")),
        "min_expected": max(
            0.0, row.get("do_verify_score_threshold", 0.0) + row.get("score_penalty_coef", 2.0)
        ),
        "ignore_eos": True,
        "stop_token_ids": tuple(pop("stopping_criteria_idx", list, default=[])),
        "stop_at_eos": False,
    }
    for name in (*_OF_POLICIES, *_OF_VERIFICATION):
        pop(name, str, int, float, bool, default=None)
    return S2D2Settings, values


def published_s2d2(session: DecodeSession, row: dict[str, Any]) -> DecodeSession:
    """The session in place of one that has not begun, with the row's policy and draws."""

    class Published(PublishedS2D2Session):
        recorded = row

    return Published(session.prompt, session.settings, session.vocabulary)


class PublishedS2D2Session(S2D2Session):
    """The policies of the published code besides ours, and its numbers in place of draws."""

    recorded: dict[str, Any]
    """The row."""

    def _begin(self) -> None:
        super()._begin()
        self._is_on = False
        self._arms: dict[tuple[int, ...], list[list[float]]] = {}
        self._arm: tuple[list[float], float] | None = None  # the rewards that a step adds to, and its factor
        self._decisions = 0
        verified = [step for step in self.recorded["trace"] if step.get("v")]
        self._verifications = iter(verified)
        self._first_mask = 0  # of the block in the last call that drafted

    def _get(self, name: str, default: Any) -> Any:
        value = self.recorded["settings"].get(name)
        return default if value is None else value

    # Windows

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

    # Policies

    def _verifies(self, span: Sequence[int], scores: Scores) -> bool:
        masks = len(scores)
        sure = sum(s.probability > self.settings.confidence_threshold for s in scores.values())
        alphas = [math.exp(-self._entropy(scores[p])) for p in span]
        cost = self._get("score_penalty_coef", 2.0)
        if self._get("do_verify_score_type", "difference_dynamic") == "difference_dynamic":
            cost *= sure
        score = sum(accumulate(alphas, mul)) - cost
        match self._get("do_verify_policy", "mask_span_length"):
            case "mask_span_length":
                least = self._get("min_ssd_span_length", 1)
                legacy = self._get("legacy_ssd_span_strategy", False)
                return bool(len(span) >= least or (legacy and sure < min(least, masks)))
            case "score_threshold" if self._get("do_verify_score_type", "") == "difference_static":
                return super()._verifies(span, scores)
            case "score_threshold":
                return bool(score >= self._get("do_verify_score_threshold", 0.0))
            case "score_hysteresis":
                off = self._get("hysteresis_threshold_off", -1.0)
                on = self._get("hysteresis_threshold_on", 0.0)
                self._is_on = score >= off if self._is_on else score > on
                return self._is_on
            case _:
                return self._pulls(span, scores)

    def _entropy(self, score: PositionScore) -> float:
        return -score.score / math.log(self.vocabulary.size)

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
        self._decisions += 1
        arms = self._arms.setdefault(bucket, [[], []])
        beta = self._get("ucb_beta", 1.0)
        skip, verify = (
            sum(rewards) / len(rewards) + beta * math.sqrt(math.log(self._decisions) / len(rewards))
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

    # Verification

    def _verified(self, reports: Sequence[Sequence[float]]) -> list[Decision]:
        self._step = next(self._verifications)
        filled = super()._verified(reports)
        if self._step.get("rs") is not None and self._get("rng", "") == "seeded":
            filled[-1] = replace(filled[-1], token=self._step["rs"])
        rejected = len(filled) == self._step["na"] + 1
        if rejected and not self._get("allow_resample", True):
            filled[-1] = [draft.decision for draft in self._drafts.values()][len(filled) - 1]
        least = self._get("ssd_ratio_threshold", -1.0)
        drafts = list(zip(self._drafts.values(), reports, strict=True))[len(filled) :]
        further = [
            draft.decision
            for draft, report in drafts
            if 0 <= least <= min(1.0, self._ratio(report[0], draft))
        ]
        return filled + further

    def _uniform(self, position: int) -> float:
        return float(self._step["u"][position - min(self._drafts)])

    def _ratio(self, probability: float, draft: PositionScore) -> float:
        return float(super()._ratio(probability, draft) ** self._get("ssd_ratio_tempering_factor", 1.0))


def compare_s2d2(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """The calls, which of them verified what, what each step filled, and the answer. The published code stores its last
    block, too."""
    row = case.row
    steps = row["trace"][: -1 if row["trace"][-1]["k"] == "s" else None]
    got: list[dict[str, Any]] = []
    for plan, outcome in run.rounds:
        branch = plan.branches[0]
        if _is_verifying(branch):
            got[-1] |= {"v": 1, "span": len(plan.branches), "f": outcome.filled}
        else:
            got.append({"v": 0, "k": "d" if branch.scored else "c", "w": plan.start, "f": outcome.filled})
    yield from check("calls", 0, ["d" if step["k"] == "d" else "c" for step in steps], [g["k"] for g in got])
    for number, (recorded, step) in enumerate(zip(steps, got, strict=False), 1):
        yield from check("window", number, recorded["w"][0], step["w"])
        if recorded["k"] != "d":
            continue
        yield from check("verified", number, recorded["v"], step["v"])
        if step["v"]:
            yield from check("span", number, recorded["span"][1], step["span"])
        filled = sorted((decision.position, decision.token) for decision in step["f"])
        yield from check("fills", number, sorted((fill[0], fill[1]) for fill in recorded["f"]), filled)
        drafted = dict(zip(range(recorded["span"][0], 10**6), recorded["p"], strict=False))
        kept = [d for d in step["f"] if [d.position, d.token, "a"] in recorded["f"]]
        yield from check_close(
            "p", number, [drafted[d.position] for d in kept], [d.probability for d in kept]
        )
    answer = token_ids(row, "tokens")
    if run.tokens[: len(answer)] != answer:
        yield Difference("tokens", 0, answer, run.tokens)


def _is_verifying(branch: Branch) -> bool:
    return isinstance(branch.scoring, ChooseTokens) and isinstance(branch.scoring.memory, Drafted)
