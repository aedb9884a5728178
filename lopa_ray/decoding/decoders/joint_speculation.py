"""Self-speculation that drafts while it verifies: one forward per round does both, for several guesses.

A branch is a guess of what the verification will accept: the last token and the guess as causal rows, then
`block_size` - 1 masks that see all of the branch, unless the model has a draft head. The causal rows verify the guess;
the masks draft what follows it. The longest accepted prefix of any guess is taken, and the token that the causal pass
decides after it, so autoregressive decoding gives the same tokens. The next drafts come from the longest guess that was
accepted whole; if none was, from the rest of the drafts before. Published: TiDAR (arXiv 2511.08923, a model trained for
such a pass), PaSS (arXiv 2311.13581) and lookahead decoding (arXiv 2402.02057).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

from lopa_ray.decoding.branch_budget import CostBudget
from lopa_ray.decoding.branching import PositionScore
from lopa_ray.decoding.draft_beams import Beam, beams_of, beside_repeated, choose_beams, repeated_beam
from lopa_ray.decoding.guesses import Alternatives, Guess, choose_guesses, reweigh
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import BlockView, Decision, RuleStep, StepOutcome
from lopa_ray.protocol.plan import Branch, Commit, Plan
from lopa_ray.protocol.scoring import MAX_DRAFT_BEAMS, MAX_DRAFT_DEPTH, ChooseTokens, ContinuationDrafts
from lopa_ray.protocol.step_report import BranchReport

if TYPE_CHECKING:
    from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings

SECOND_GAINS = 0.2
"""Tokens per forward that a second guess adds at most, as a share; a third one half as many, and so on."""

PRIOR_TOKENS = 8.0
"""A request begins as if its beams had promised so many tokens and all had been right. Some answers are easier to guess
than others."""

ALTERNATIVES = 3  # tokens per position that a guess may have


class JointSpeculationSession(DecodeSession):
    settings: SelfSpeculationSettings

    def _begin(self) -> None:
        self._ids = list(self.prompt)
        self._drafts: list[Alternatives] = []  # drafts of the positions from `_base` + 1 on
        self._beams: list[Beam] = []  # of the model's draft head
        self._base = len(self.prompt)  # what the causal pass decided after the guess of the drafts
        self._commit: Commit | None = None
        self._branches: list[Guess] = []
        self._spent = 0.0  # milliseconds of the steps so far, by the costs that auto weighs
        self._promise = 0.0  # tokens of the coming step's first guess that should be right, by its beam
        self._promised = PRIOR_TOKENS  # the same, of all first guesses so far
        self._kept = PRIOR_TOKENS  # tokens of these that were right

    @property
    def generated(self) -> list[int]:
        """Ids after the prompt that were taken. Drafts are not part of the canvas."""
        return self._ids[len(self.prompt) :]

    @property
    def exhausted(self) -> bool:
        has_begun = len(self._ids) > len(self.prompt)
        return len(self._ids) >= self.max_len or (has_begun and self._ids[-1] in self.end_token_ids)

    @property
    def step_limit(self) -> int:
        return self.settings.max_new_tokens + 1

    # Planning

    def _plan(self, num_branches: int) -> Plan:
        end = len(self._ids)
        start = end - 1 if self.steps else 0
        most_branches = self._most_branches
        self._branches = self._guesses(min(num_branches, most_branches))
        drafts = self._drafts_wanted(most_branches)
        branches = tuple(self._branch(start, guess, drafts) for guess in self._branches)
        masks = max(branch.stop for branch in branches) - end
        sampling = self.sampling_params
        if most_branches > 1 and not self._has_head:
            sampling = replace(sampling, top_logprobs=max(sampling.top_logprobs, ALTERNATIVES))
        return Plan(
            step=self.steps + 1,
            start=start,
            canvas=(*self._ids[start:], *(self.vocabulary.mask_token_id,) * masks),
            branches=branches,
            cached=(range(start),) if start else (),
            draft_adapter=True,
            logit_changes=self.step_logit_changes,
            commit=self._commit,
            sampling_params=sampling,
            scores_decided=True,
        )

    @property
    def _most_branches(self) -> int:
        """The guesses that may be worth their time. No tokens for more are asked for, which takes time too."""
        limit = self.settings.branch_limit
        if not (self._has_head or self._num_masks):
            return 1
        if self.load is None or not self.settings.weighs_costs:
            return limit
        rows = self._rows(self._drafted_tokens) if self._has_head else self._num_masks * 3 // 2
        gains = accumulate(SECOND_GAINS / number for number in range(1, limit))
        cost = self.load.cost(1, rows)
        pays = (n for n, gain in enumerate(gains, 2) if self.load.cost(n, rows) < (1 + gain) * cost)
        return max(pays, default=1)

    def _guesses(self, most: int) -> list[Guess]:
        """Guesses of what may follow. The last position is left to the causal pass."""
        if not self.steps:
            return [()]
        end = len(self._ids)
        age, room = end - self._base, self.max_len - 1 - end
        if self._has_head:
            rows = self._rows(max(0, min(self._drafted_tokens, room)))
            budget = self._budget(most, rows)
            beams = beside_repeated(self._beams, repeated_beam(self._ids, self._drafted_tokens))
            verifiable = [self._verifiable(beam[: max(0, room)]) for beam in beams]
            guesses, self._promise = choose_beams(verifiable, budget, self._kept / self._promised)
            return guesses
        most_drafts = max(0, min(room, self._num_masks - 1))
        drafts = reweigh(self._drafts[age - 1 :][:most_drafts], self._ids[-1], age)
        budget = self._budget(most, self._rows(len(drafts) // 2))
        return choose_guesses(drafts, age, budget)

    def _budget(self, most: int, rows: int) -> CostBudget:
        """A step decides a token without a guess."""
        rate = (len(self.generated) - 1) / self._spent if self._spent else None  # without the prompt's step
        return CostBudget.of(self.settings, self.load, most, rows, gain=1.0, rate=rate)

    def _rows(self, guessed: int) -> int:
        """Rows of a branch: the last token, so many guessed ones, and masks."""
        return 1 + guessed + self._num_masks

    def _verifiable(self, beam: Beam) -> Beam:
        """A beam as far as the first end of an answer, which the causal pass has to decide."""
        return list(takewhile(lambda draft: draft[0] not in self.end_token_ids, beam))

    @property
    def _has_head(self) -> bool:
        """Whether drafts come from the model's draft head, so that no mask is needed."""
        return self.vocabulary.has_draft_head and self.settings.block_size > 1

    @property
    def _drafted_tokens(self) -> int:
        return min(self.settings.block_size - 1, MAX_DRAFT_DEPTH)

    def _drafts_wanted(self, most_branches: int) -> ContinuationDrafts | None:
        if not self._has_head:
            return None
        return ContinuationDrafts(min(most_branches, MAX_DRAFT_BEAMS), self._drafted_tokens)

    @property
    def _num_masks(self) -> int:
        """Masks behind a guess. The causal pass decides the first one's token, so a single mask would draft nothing."""
        masks = 0 if self._has_head else self.settings.block_size - 1
        return masks if masks > 1 else 0

    def _branch(self, start: int, guess: Guess, drafts: ContinuationDrafts | None) -> Branch:
        end = len(self._ids)
        base = end + len(guess)
        masks = self._num_masks
        # The limit of a step's rows is checked with the first branch alone, so no later branch may have more.
        if not self.steps:
            longest = self._drafted_tokens if self._has_head else max(0, masks - 1)
            masks = max(masks, self._rows(longest) - end)
        elif base + 1 == self.max_len:
            masks = 0  # a single one drafts nothing
        stop = min(base + masks, self.max_len)
        return Branch(
            segments=((base, base), (stop, stop)) if stop > base else ((base, base),),
            scored=range(end, max(base + 1, stop)),
            fills=tuple(enumerate(guess, end)),
            to_stage=(range(start, base),),
            causal_stop=base,
            scoring=ChooseTokens(
                draw_key=1 if self.settings.temperature > 0 else 0,
                memory=drafts,
            ),
        )

    # Verification

    def _advance(self, plan: Plan, reports: Sequence[BranchReport]) -> StepOutcome:
        end = len(self._ids)
        accepted = [self._accepted(*pair) for pair in zip(self._branches, reports, strict=True)]
        winner = accepted.index(max(accepted))
        taken = [self._decision(reports[winner], row) for row in range(accepted[winner] + 1)]
        if self._has_head:
            drafted = reports[winner].memory[accepted[winner]]
            self._beams = beams_of(drafted)
            self._promised, self._kept = self._promised + self._promise, self._kept + accepted[0]
        whole = [index for index, guess in enumerate(self._branches) if accepted[index] == len(guess)]
        newest = max(whole, key=accepted.__getitem__, default=None)
        if newest is not None and not self._has_head:
            self._base = end + accepted[newest]
            self._drafts = self._drafted(reports[newest], accepted[newest] + 1)
        self._ids += [decision.token for decision in taken]
        if self.steps > 1 and self.load is not None and self.settings.weighs_costs:
            rows = self._rows(max(map(len, self._branches)))
            self._spent += self.load.cost(len(self._branches), rows)
        self._commit = plan.commit_of(winner)
        return StepOutcome(
            step=plan.step,
            winner=winner,
            confidences=tuple(float(report.scores.mean()) for report in reports),
            adopted=(),
            rule_steps=(RuleStep(winner, tuple(taken)),),
            canvas=tuple(self.generated),
            blocks=taken_views(len(self.prompt), len(self._ids)),
            commit=self._commit,
        )

    def _accepted(self, guess: Guess, report: BranchReport) -> int:
        """How many tokens of a guess the causal pass confirms. Nothing is accepted from an end of the answer on."""
        verified = report.tokens[: len(guess)].tolist()
        for at, (token, guessed) in enumerate(zip(verified, guess, strict=True)):
            if token != guessed or token in self.end_token_ids:
                return at
        return len(guess)

    def _decision(self, report: BranchReport, row: int) -> Decision:
        shown, probability = report.with_tops(self.settings.top_logprobs), report.probabilities.item(row)
        return PositionScore(probability, report.scores.item(row), shown, row).decision

    def _drafted(self, report: BranchReport, first: int) -> list[Alternatives]:
        """The drafts of a report's rows from `first` on, as far as the first draft that ends the answer."""
        drafts: list[Alternatives] = []
        for row in range(first, len(report.tokens)):
            token = report.tokens.item(row)
            alternatives = [(token, report.probabilities.item(row))]
            if report.top_tokens.size:
                others = report.top_tokens[row, :ALTERNATIVES].tolist()
                logprobs = report.top_logprobs[row, :ALTERNATIVES].tolist()
                pairs = zip(others, logprobs, strict=True)
                alternatives += [(other, math.exp(logprob)) for other, logprob in pairs if other != token]
            drafts.append(alternatives)
            if token in self.end_token_ids:
                break
        return drafts


def taken_views(first: int, end: int) -> tuple[BlockView, ...]:
    """The prompt, and the tokens that were taken, as blocks."""
    views = (BlockView(0, first, "in_cache", 0, True), BlockView(first, end, "in_cache", 0, True))
    return views if first < end else views[:1]
