"""A stand-in for a model: random but repeatable reports for any plan, without torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa_ray.constraints.token_bitmasks import unpack_bitmask
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.plan import Branch, Plan, StepPlan
from lopa_ray.protocol.scoring import ChooseTokens, Credits, Drafted, ShadowSlots, StateBefore
from lopa_ray.protocol.step_report import BranchReport, StepReport
from lopa_ray.protocol.vocabulary import Vocabulary
from support.step_reports import pack_reports

VOCABULARY = Vocabulary(size=50, mask_token_id=49, eos_token_id=48)


def scored_positions(plan: Plan, branch: Branch, mask: int, *, decided: bool) -> list[int]:
    """The positions that a branch scores, ascending; `decided`: those too that have a token."""
    ids = plan.input_ids(branch)
    if branch.causal_stop >= branch.stop:
        ids.append(mask)  # the position behind the last row
    return [p for p, token in enumerate(ids, plan.start) if p in branch.scored and (decided or token == mask)]


@dataclass(frozen=True)
class FakeModel:
    """Reports follow from (seed, step, branch) alone, so a step that is planned again gets the same."""

    seed: int = 0
    eos_probability: float = 0.0
    levels: int = 1000
    """Probabilities are rounded to this many levels: few of them make ties."""
    probability_exponent: float = 1.0
    """Exponent of a uniform draw: below 1 probabilities are high, above 1 low."""
    vocabulary: Vocabulary = VOCABULARY

    def report(self, plan: Plan, branch: int) -> BranchReport:
        """What a runner would answer for one branch, as far as shapes and ranges go."""
        mask, eos = self.vocabulary.mask_token_id, self.vocabulary.eos_token_id
        positions = np.array(
            scored_positions(plan, plan.branches[branch], mask, decided=plan.scores_decided), np.int32
        )
        rng = np.random.default_rng([self.seed, plan.step, branch])
        n = len(positions)
        tokens = rng.integers(0, min(mask, eos), n, dtype=np.int32)
        tokens[(rng.random(n) < self.eos_probability) & (positions >= plan.sampling_params.no_eos_before)] = (
            eos
        )
        for index, position in enumerate(positions.tolist() if plan.token_bitmasks else ()):
            bitmask = plan.token_bitmask(plan.branches[branch], position)
            assert bitmask is not None
            allowed = np.flatnonzero(unpack_bitmask(bitmask, self.vocabulary.size))
            if tokens[index] not in allowed:
                tokens[index] = rng.choice(allowed)
        probabilities = _rounded(rng.random(n) ** self.probability_exponent, self.levels)
        scores = probabilities
        if plan.sampling_params.ranking == "margin":
            scores = _rounded(probabilities * rng.random(n), self.levels)
        elif plan.sampling_params.ranking == "neg_entropy":
            scores = _rounded(-3 * rng.random(n), self.levels)
        candidates = plan.branches[branch].candidates
        top = len(candidates) or plan.sampling_params.top_logprobs
        logprobs = np.log(np.maximum(probabilities, 1e-9)).astype(np.float32)
        top_tokens = (tokens[:, None] + np.arange(top, dtype=np.int32)) % self.vocabulary.size
        if self.vocabulary.delete_token_id is not None and top:
            # A model that gives up tokens may find the mask token most likely.
            top_tokens[rng.random(n) < 0.1, 0] = mask
        return BranchReport(
            step=plan.step,
            branch=branch,
            positions=positions,
            tokens=tokens,
            probabilities=probabilities,
            logprobs=logprobs,
            scores=scores,
            top_tokens=np.tile(np.array(candidates, np.int32), (n, 1)) if candidates else top_tokens,
            top_logprobs=logprobs[:, None] - np.arange(top, dtype=np.float32),
            memory=fake_memory(plan.branches[branch], tokens, rng.random(n)),
        )

    def reports(self, plan: Plan) -> list[BranchReport]:
        """One report per branch, in order."""
        return [self.report(plan, branch) for branch in range(len(plan.branches))]

    def plans_of(self, session: DecodeSession) -> list[Plan]:
        """The plans of a whole decode."""
        plans = []
        while not session.finished:
            plan = session.plan()
            plans.append(plan)
            session.advance(self.reports(plan))
        return plans

    def execute(self, plan: StepPlan) -> StepReport:
        """A worker's part of a step, as `BranchRunner.execute` answers it."""
        reports = [
            (scheduled.request_id, self.report(scheduled.plan, branch))
            for scheduled in plan.requests
            for branch in scheduled.branch_indices
        ]
        return pack_reports(plan.epoch, plan.step, reports)


def fake_memory(
    branch: Branch, tokens: npt.NDArray[np.int32], units: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """What a rule with memory may get for rows with these tokens, from numbers in [0, 1) for each."""
    memory = branch.scoring.memory if isinstance(branch.scoring, ChooseTokens) else None
    if isinstance(memory, StateBefore):
        return units[:, None] + 27 * (memory.inputs is None)
    if isinstance(memory, ShadowSlots):
        return units[:, None]
    if isinstance(memory, Drafted):
        return np.stack([units, (tokens + 1) % 48, 1 - units], axis=1)
    if isinstance(memory, Credits):
        return np.stack([tokens.astype(np.float64), np.log(1 - units)], axis=1)
    return np.zeros((len(tokens), 0))


def _rounded(values: npt.NDArray[np.float64], levels: int) -> npt.NDArray[np.float64]:
    return (np.round(values * levels) / levels).astype(np.float32).astype(np.float64)
